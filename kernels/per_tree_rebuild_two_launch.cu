// The tree of per_tree_rebuild.cu, the same bits, by two launches on one stream: first per_tree_subtrees with
// Grid = (64), Block = (256), then per_tree_top with Grid = (1), Block = (64) (other block sizes give the same bits; the
// grid of the first is fixed). No shared memory. Arguments as in per_tree_rebuild.cu.
//
// Why it is deterministic: node 64 + b is the root of block b's own subtree, and a block touches no other's, so the
// __syncthreads() between its levels is all the order it needs. The second launch begins when all blocks of the first
// have ended, which is the barrier of the whole grid; it adds the levels above the 64 roots. Each node is one addition
// of its two children, as in the single-block form. A tree of at most 64 leaves is the second launch's alone.
//
// Cost: the large levels are read by 64 multiprocessors, the last six by one; two launches instead of one.
#define SUBTREES 64

// CuPy compiles with -ftz=true, which would flush subnormal sums that the host keeps; an instruction written out is not
// touched by it.
__device__ float exact_sum(float a, float b) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return a + b;
#endif
}

extern "C" __global__ void __launch_bounds__(1024) per_tree_subtrees(float* nodes, unsigned capacity) {
    for (unsigned width = capacity / 2; width >= SUBTREES; width /= 2) {
        unsigned share = width / SUBTREES, first = width + blockIdx.x * share;
        for (unsigned i = threadIdx.x; i < share; i += blockDim.x)
            nodes[first + i] = exact_sum(nodes[2 * (first + i)], nodes[2 * (first + i) + 1]);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(1024) per_tree_top(float* nodes, unsigned capacity) {
    unsigned width = capacity / 2 < SUBTREES / 2 ? capacity / 2 : SUBTREES / 2;
    for (; width > 0; width /= 2) {
        for (unsigned i = threadIdx.x; i < width; i += blockDim.x)
            nodes[width + i] = exact_sum(nodes[2 * (width + i)], nodes[2 * (width + i) + 1]);
        __syncthreads();
    }
}
