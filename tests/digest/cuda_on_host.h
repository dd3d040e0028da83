// Runs the CUDA sources of kernels/ on a CPU for the tests of the digest: a fiber for each thread, one block at a time,
// blocks in a permuted order, and at every barrier, shuffle and start the next thread drawn from a seeded generator.
// Shared memory is filled with bytes of the seed.
//
// Compiled with -fsanitize=thread but linked without libtsan, every access of a kernel calls the hooks below. They give
// the scheduler a place to pre-empt, and find races: two accesses to a byte, one of them a write, by two threads of a
// block that no __syncthreads() parts, or by two blocks of a launch. That is the whole of happens-before for a kernel
// whose only synchronisation is __syncthreads(), whatever the schedule; a shuffle orders no memory here, which is
// stricter than CUDA. A fence is a place to yield and orders nothing: that is right without atomics, which, like other
// barriers, are unknown and do not compile.
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <unordered_map>
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

#define UNWATCHED __attribute__((no_sanitize("thread")))

struct Access {
    unsigned block, thread, epoch;
    bool any;
};
struct Byte {
    Access write, read, other_read;
    bool read_by_earlier_block;
};
// Weak: a kernel without shared memory has no such section.
extern char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));
static std::unordered_map<uintptr_t, Byte> shadow;
static unsigned long long races, first_race[6];  // address, block, thread, of the earlier access and of the later
static unsigned epoch, preempt_one_in;
static bool in_kernel;
static char *stacks_from, *stacks_to;

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

UNWATCHED static unsigned draw(unsigned below) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)((random_state >> 33) % below);
}
UNWATCHED static void wait_in(State state) {
    in_kernel = false;
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
    in_kernel = true;
}
UNWATCHED static bool conflicts(const Access& earlier, const Access& now) {
    if (!earlier.any || (earlier.block == now.block && earlier.thread == now.thread)) return false;
    return earlier.block != now.block || earlier.epoch == now.epoch;
}
UNWATCHED static void report(uintptr_t at, const Access& earlier, const Access& now) {
    if (races++) return;
    unsigned long long found[6] = {at, earlier.block, earlier.thread, at, now.block, now.thread};
    memcpy(first_race, found, sizeof found);
}
UNWATCHED static void access(void* pointer, unsigned size, bool write) {
    char* start = (char*)pointer;
    if (!in_kernel || (start >= stacks_from && start < stacks_to)) return;
    in_kernel = false;
    Access now = {blockIdx.x, threadIdx.x, epoch, true};
    for (uintptr_t at = (uintptr_t)start; at < (uintptr_t)start + size; ++at) {
        // The same addresses are another memory in each block.
        bool is_shared = (char*)at >= __start_cuda_shared && (char*)at < __stop_cuda_shared;
        Byte& byte = shadow[at];
        if (is_shared && byte.write.any && byte.write.block != now.block) byte = Byte();
        if (is_shared && byte.read.any && byte.read.block != now.block) byte = Byte();
        if (conflicts(byte.write, now)) report(at, byte.write, now);
        if (write) {
            if (conflicts(byte.read, now)) report(at, byte.read, now);
            else if (conflicts(byte.other_read, now)) report(at, byte.other_read, now);
            else if (byte.read_by_earlier_block) report(at, byte.read, now);
            byte.write = now;
        } else {
            if (byte.read.any && byte.read.block != now.block) byte.read_by_earlier_block = true;
            if (byte.read.any && byte.read.thread != now.thread) byte.other_read = byte.read;
            byte.read = now;
        }
    }
    bool yield = preempt_one_in && draw(preempt_one_in) == 0;
    in_kernel = true;
    if (yield) wait_in(READY);
}
#define HOOK(size)                                                                   \
    extern "C" UNWATCHED void __tsan_read##size(void* at) { access(at, size, false); }          \
    extern "C" UNWATCHED void __tsan_write##size(void* at) { access(at, size, true); }          \
    extern "C" UNWATCHED void __tsan_unaligned_read##size(void* at) { access(at, size, false); } \
    extern "C" UNWATCHED void __tsan_unaligned_write##size(void* at) { access(at, size, true); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
extern "C" UNWATCHED void __tsan_init() {}
extern "C" UNWATCHED void __tsan_func_entry(void*) {}
extern "C" UNWATCHED void __tsan_func_exit() {}
extern "C" UNWATCHED void __tsan_read_range(void* at, unsigned long size) { access(at, (unsigned)size, false); }
extern "C" UNWATCHED void __tsan_write_range(void* at, unsigned long size) { access(at, (unsigned)size, true); }
extern "C" UNWATCHED void __tsan_vptr_update(void**, void*) {}
extern "C" UNWATCHED void __tsan_vptr_read(void**) {}
static void __syncthreads() { wait_in(BARRIER); }
// A place to go on with another thread, and no order at all: without an atomic beside it a fence gives none.
static inline void __threadfence() { wait_in(READY); }
template <class T>
UNWATCHED static T __shfl_xor_sync(unsigned, T value, int mask) {
    in_kernel = false;
    unsigned self = current, turn = fibers[self].shuffles++ & 1;
    exchange[turn][self] = (unsigned long long)value;
    wait_in(SHUFFLE);
    in_kernel = false;
    T found = (T)exchange[turn][self ^ mask];
    in_kernel = true;
    return found;
}
UNWATCHED static void enter() {
    in_kernel = true;
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
    if (all) {
        ++epoch;
        for (auto& fiber : fibers) fiber.state = READY;
    }
    return moved || all;
}
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
    stacks_from = stacks.data();
    stacks_to = stacks_from + stacks.size();
    shadow.clear();
    epoch = 0;
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
extern "C" void set_preemption(unsigned one_in) { preempt_one_in = one_in; }
extern "C" unsigned long long take_races(unsigned long long* first) {
    unsigned long long found = races;
    memcpy(first, first_race, sizeof first_race);
    races = 0;
    return found;
}
