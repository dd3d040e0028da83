// Recomputes the inner nodes of a sum-tree in place, by one block. Grid = (1), Block = (1024) (any size gives the same
// bits). No shared memory. Arguments: float nodes[2 * capacity] (nodes[1] the root, the children of i are 2i and 2i + 1,
// the leaves last, nodes[0] unused) and capacity, a power of two from 1 to 2^30.
//
// Why it is deterministic: a node is written by one thread, the one that the fixed map i = threadIdx.x + k * blockDim.x
// gives it, and is one addition of its two children, so the shape of the tree fixes every order of additions. The
// children were written in the level before, behind a __syncthreads(), which makes the writes of a block visible to
// that block. There is one block, so there is nobody else to wait for. The racy specimen, per_tree_rebuild_racy.cu, has
// __threadfence() there instead: a fence orders the writes of one thread and waits for no other.
//
// Cost: log2(capacity) barriers and 2 * capacity reads by one multiprocessor. The way up when a capacity above 2^21
// makes that the longest part of a step: per_tree_rebuild_two_launch.cu spreads the same additions over 64 blocks, and
// above it a launch a level: the boundary of two launches is the only barrier of a whole grid that needs no assumption
// about which blocks are resident.

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

extern "C" __global__ void __launch_bounds__(1024) per_tree_rebuild(float* nodes, unsigned capacity) {
    for (unsigned width = capacity / 2; width > 0; width /= 2) {
        for (unsigned i = threadIdx.x; i < width; i += blockDim.x)
            nodes[width + i] = exact_sum(nodes[2 * (width + i)], nodes[2 * (width + i) + 1]);
        __syncthreads();
    }
}
