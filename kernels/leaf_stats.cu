// The stats of a table of leaves (detaudit/digest/stats.py): sum of squares in a fixed order, multiset hash, extremes
// of the finite elements, counts of NaN and Inf. Two launches on one stream: `stats_segments`, Grid = (segments of
// 65,536 elements of all leaves together), Block = (256), then `stats_leaves`, Grid = (leaves), Block = (256).
//
// Why it is deterministic, and equal to the host: an element becomes float64 by integer operations, exact whatever
// -ftz says; thread j adds the squares of column j from the first row of 256 to the last, with __dmul_rn and __dadd_rn,
// which are never contracted; thread j then takes in j + 128, j + 64, ..., j + 1; one thread adds the segments in
// order. The other results do not depend on order at all: wrapping integer sums, minima and maxima of numbers without
// NaN (0.0 + x makes -0.0 into +0.0 at the end). No atomics; a word is written by one thread only.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 256
#define SEGMENT 65536ULL
#define COLUMNS 6

// How the bits of an element are to be read; the host fills it from the dtype. kind: 0 unsigned integer, 1 signed
// integer, 2 bool, 3 float of `exponent` and `mantissa` bits with `bias`. A float has `sign` bits (1, or 0 for
// float8_e8m0fnu). special: 0 infinities and NaN as in IEEE 754; 1 NaN where all bits but the sign are set, no Inf
// (float8_e4m3fn); 2 NaN where only the sign is set, no Inf (the fnuz types); 3 NaN where all bits are set, a
// mantissa of none, no zero (float8_e8m0fnu).
struct Row {
    u64 address, count, first_segment;
    u32 size, kind, exponent, mantissa, bias, special;
};

__device__ u64 double_bits(double x) { return (u64)__double_as_longlong(x); }
__device__ double of_bits(u64 x) { return __longlong_as_double((long long)x); }

// The raw bytes of an element as an unsigned integer.
__device__ u64 load(const Row* row, u64 index) {
    u64 at = row->address + index * row->size;
    if (at % row->size) {
        u64 word = 0;
        for (u32 i = 0; i < row->size; ++i) word |= (u64)((const u8*)at)[i] << (8 * i);
        return word;
    }
    switch (row->size) {
        case 1: return *(const u8*)at;
        case 2: return *(const unsigned short*)at;
        case 4: return *(const u32*)at;
        default: return *(const u64*)at;
    }
}

__device__ double power_of_two(int exponent) { return of_bits((u64)(exponent + 1023) << 52); }

// 0 finite, 1 NaN, 2 Inf.
__device__ u32 category(const Row* row, u64 word) {
    if (row->kind != 3) return 0;
    u32 bits = row->exponent + row->mantissa;
    u64 magnitude = word & ((1ULL << bits) - 1), all = (1ULL << bits) - 1;
    u64 infinity = all & ~((1ULL << row->mantissa) - 1);
    switch (row->special) {
        case 0: return magnitude < infinity ? 0 : magnitude == infinity ? 2 : 1;
        case 2: return word == 1ULL << bits ? 1 : 0;
        default: return magnitude == all ? 1 : 0;
    }
}

// A finite element as float64. Exact, but for 64-bit integers, which are rounded to nearest.
__device__ double number(const Row* row, u64 word) {
    if (row->kind == 0) return __ull2double_rn(word);
    if (row->kind == 2) return word ? 1.0 : 0.0;
    if (row->kind == 1) {
        u32 unused = 64 - 8 * row->size;
        return __ll2double_rn((long long)(word << unused) >> unused);
    }
    if (row->size == 8) return of_bits(word);
    u32 bits = row->exponent + row->mantissa;
    u64 fraction = word & ((1ULL << row->mantissa) - 1);
    int exponent = (int)(word >> row->mantissa & ((1ULL << row->exponent) - 1)), bias = (int)row->bias;
    double value;
    if (exponent || row->special == 3)
        value = of_bits((u64)(exponent - bias + 1023) << 52 | fraction << (52 - row->mantissa));
    else  // a subnormal number: a small integer times a power of two, both exact in float64
        value = __dmul_rn(__ull2double_rn(fraction), power_of_two(1 - bias - (int)row->mantissa));
    return row->special != 3 && (word >> bits & 1) ? -value : value;
}

__device__ u64 mixed(u64 z) {
    z += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

__device__ u32 owner(const Row* rows, u32 leaves, u64 segment) {
    u32 low = 0, high = leaves;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (rows[middle].first_segment <= segment)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// partials: COLUMNS words a segment: bits of the sum, bag, bits of the minimum, of the maximum, NaN, Inf.
extern "C" __global__ void __launch_bounds__(256)
    stats_segments(const Row* rows, unsigned int leaves, u64* partials) {
    __shared__ double sums[LANES], lows[LANES], highs[LANES];
    __shared__ u64 bags[LANES], counts[LANES];
    const u32 lane = threadIdx.x;
    const Row row = rows[owner(rows, leaves, blockIdx.x)];
    u64 start = (blockIdx.x - row.first_segment) * SEGMENT;
    u64 stop = row.count - start < SEGMENT ? row.count : start + SEGMENT;
    double sum = 0.0, low = of_bits(0x7FF0000000000000ULL), high = -low;
    u64 bag = 0, count = 0;  // NaN in the lower half of count, Inf in the upper
#pragma unroll 4
    for (u64 index = start + lane; index < stop; index += LANES) {
        u64 word = load(&row, index);
        bag += mixed(word);
        u32 what = category(&row, word);
        if (what) {
            count += what == 1 ? 1 : 1ULL << 32;
            continue;
        }
        double x = number(&row, word);
        sum = __dadd_rn(sum, __dmul_rn(x, x));
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    sums[lane] = sum;
    lows[lane] = low;
    highs[lane] = high;
    bags[lane] = bag;
    counts[lane] = count;
    __syncthreads();
    for (u32 half = LANES / 2; half; half /= 2) {
        if (lane < half) {
            sums[lane] = __dadd_rn(sums[lane], sums[lane + half]);
            lows[lane] = lows[lane + half] < lows[lane] ? lows[lane + half] : lows[lane];
            highs[lane] = highs[lane + half] > highs[lane] ? highs[lane + half] : highs[lane];
            bags[lane] += bags[lane + half];
            counts[lane] += counts[lane + half];
        }
        __syncthreads();
    }
    if (lane == 0) {
        u64* out = partials + (u64)COLUMNS * blockIdx.x;
        out[0] = double_bits(sums[0]);
        out[1] = bags[0];
        out[2] = double_bits(lows[0]);
        out[3] = double_bits(highs[0]);
        out[4] = counts[0] & 0xFFFFFFFFULL;
        out[5] = counts[0] >> 32;
    }
}

// results: COLUMNS words a leaf, as in partials, over all its segments; 0.0 for the extremes of nothing finite.
extern "C" __global__ void __launch_bounds__(256)
    stats_leaves(const Row* rows, const u64* partials, u64* results) {
    __shared__ u64 tile[COLUMNS * LANES];
    const Row row = rows[blockIdx.x];
    const u32 column = threadIdx.x / 32, here = threadIdx.x % 32 == 0;  // one thread of a warp for each column
    u64 segments = (row.count + SEGMENT - 1) / SEGMENT;
    const double infinity = of_bits(0x7FF0000000000000ULL);
    double sum = 0.0, extreme = column == 2 ? infinity : -infinity;
    u64 total = 0;
    for (u64 first = 0; first < segments; first += LANES) {
        u32 held = (u32)(segments - first < LANES ? segments - first : LANES);
        for (u32 i = threadIdx.x; i < COLUMNS * held; i += LANES) {
            tile[i] = partials[COLUMNS * (row.first_segment + first) + i];
        }
        __syncthreads();
        for (u32 i = 0; here && column < COLUMNS && i < held; ++i) {
            u64 word = tile[COLUMNS * i + column];
            double x = of_bits(word);
            if (column == 0) sum = __dadd_rn(sum, x);
            else if (column == 2) extreme = x < extreme ? x : extreme;
            else if (column == 3) extreme = x > extreme ? x : extreme;
            else total += word;
        }
        __syncthreads();
    }
    if (!here || column >= COLUMNS) return;
    if (extreme == infinity || extreme == -infinity) extreme = 0.0;
    u64 extreme_bits = double_bits(__dadd_rn(extreme, 0.0));
    results[(u64)COLUMNS * blockIdx.x + column] =
        column == 0 ? double_bits(sum) : column == 2 || column == 3 ? extreme_bits : total;
}
