// Runs the CUDA sources of kernels/ on a CPU for the tests of the digest: a fiber for each thread, one block at a time,
// blocks in a permuted order, and at every barrier, shuffle and start the next thread drawn from a seeded generator.
// Shared memory is filled with bytes of the seed. No race detector: a schedule that shows a missing barrier is luck.
#include <ucontext.h>

#include <cstring>
#include <stdexcept>
#include <vector>

struct dim3_ {
    unsigned x, y, z;
};
static dim3_ threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__ static
#define __constant__ static const
#define __shared__ static __attribute__((section("cuda_shared")))
#define __launch_bounds__(count)
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __ull2double_rn(unsigned long long a) { return (double)a; }
static inline double __ll2double_rn(long long a) { return (double)a; }
static inline long long __double_as_longlong(double a) {
    long long out;
    memcpy(&out, &a, 8);
    return out;
}
static inline double __longlong_as_double(long long a) {
    double out;
    memcpy(&out, &a, 8);
    return out;
}

enum State { READY, BARRIER, SHUFFLE, DONE };
struct Fiber {
    ucontext_t context;
    State state;
    unsigned shuffles;
};
static std::vector<Fiber> fibers;
static std::vector<unsigned long long> exchange[2];
static ucontext_t scheduler;
static unsigned current;
static unsigned long long random_state;
static void (*body)(void**);
static void** body_arguments;

static unsigned draw(unsigned below) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)((random_state >> 33) % below);
}
static void wait_in(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}
static void __syncthreads() { wait_in(BARRIER); }
template <class T>
static T __shfl_xor_sync(unsigned, T value, int mask) {
    unsigned self = current, turn = fibers[self].shuffles++ & 1;
    exchange[turn][self] = (unsigned long long)value;
    wait_in(SHUFFLE);
    return (T)exchange[turn][self ^ mask];
}
static void enter() {
    body(body_arguments);
    wait_in(DONE);
}
// Release the threads of a full warp that all wait in a shuffle, or of a block that all wait at the barrier.
static bool release() {
    bool moved = false, all = true;
    for (unsigned first = 0; first < fibers.size(); first += 32) {
        unsigned waiting = 0;
        for (unsigned i = first; i < first + 32; ++i) {
            waiting += fibers[i].state == SHUFFLE;
            all = all && fibers[i].state == BARRIER;
        }
        if (waiting == 32) {
            for (unsigned i = first; i < first + 32; ++i) fibers[i].state = READY;
            moved = true;
        }
    }
    if (all)
        for (auto& fiber : fibers) fiber.state = READY;
    return moved || all;
}
extern char __start_cuda_shared[], __stop_cuda_shared[];
static bool run_block(char* stacks, size_t stack) {
    for (char* at = __start_cuda_shared; at < __stop_cuda_shared; ++at) *at = (char)draw(256);
    std::vector<unsigned> ready(fibers.size());
    for (unsigned i = 0; i < fibers.size(); ++i) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack = {stacks + i * stack, 0, stack};
        makecontext(&fibers[i].context, enter, 0);
        fibers[i].state = READY;
        fibers[i].shuffles = 0;
    }
    for (;;) {
        ready.clear();
        unsigned done = 0;
        for (unsigned i = 0; i < fibers.size(); ++i) {
            if (fibers[i].state == READY) ready.push_back(i);
            done += fibers[i].state == DONE;
        }
        if (done == fibers.size()) return true;
        if (ready.empty() && !release()) return false;  // some threads at the barrier, others gone: illegal in CUDA
        while (!ready.empty()) {
            unsigned pick = draw((unsigned)ready.size());
            current = ready[pick];
            ready[pick] = ready.back();
            ready.pop_back();
            threadIdx = {current, 0, 0};
            swapcontext(&scheduler, &fibers[current].context);
        }
    }
}
static int launch(void (*kernel)(void**), unsigned grid, unsigned block, unsigned long long seed, void** arguments) {
    const size_t stack = 32768;
    std::vector<char> stacks(stack * block);
    fibers.assign(block, Fiber());
    exchange[0].assign(block, 0);
    exchange[1].assign(block, 0);
    random_state = seed * 2 + 1;
    blockDim = {block, 1, 1};
    gridDim = {grid, 1, 1};
    body = kernel;
    body_arguments = arguments;
    std::vector<unsigned> blocks(grid);
    for (unsigned i = 0; i < grid; ++i) blocks[i] = i;
    for (unsigned i = grid; i > 1; --i) std::swap(blocks[i - 1], blocks[draw(i)]);
    for (unsigned index : blocks) {
        blockIdx = {index, 0, 0};
        if (!run_block(stacks.data(), stack)) return 1;
    }
    return 0;
}
