// A specimen of a defect, for tests and demonstrations only: the rebuild of per_tree_rebuild.cu with
// Grid = (128), Block = (256) and __threadfence() between the levels where a barrier of the whole grid would have to be.
//
// Why it is wrong: __threadfence() orders the writes of the thread that calls it, as others see them. It waits for
// nobody. A thread that goes on to the next level reads children that other threads, of its own block or of another, may
// not have written yet, and adds the sums of the last rebuild: a stale read, not another order of additions. How many
// nodes are stale depends on which blocks ran when, so the tree differs from run to run.
extern "C" __global__ void per_tree_rebuild_racy(float* nodes, unsigned capacity) {
    unsigned self = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (unsigned width = capacity / 2; width > 0; width /= 2) {
        for (unsigned i = self; i < width; i += threads)
            nodes[width + i] = nodes[2 * (width + i)] + nodes[2 * (width + i) + 1];
        __threadfence();
    }
}
