// The digests of a table of leaves (detaudit/digest/spec.py), in two launches on one stream whatever the number of
// leaves: `leaf_chunks`, a block of 256 threads for each 64 KiB chunk of all leaves together, then `leaf_roots`, a
// block for each leaf. Grid = (chunks), Block = (256); Grid = (leaves), Block = (256). 4 KiB of shared memory.
//
// Why it is deterministic: integers only, no atomics, and every word of `messages` and `roots` is written by exactly
// one thread of one block from inputs that no block writes during the launch. Blocks share nothing, so their schedule
// cannot be seen; within a block each exchange goes through __syncthreads() or a full-warp shuffle. The launches are
// ordered by the stream; no block ever waits for another.
//
// Any byte count and any base address. A launch without a block is not legal: where every leaf is empty there is no
// chunk, and the host starts `leaf_roots` alone.

// ---- XXH3-64, seed 0, by one block (kept equal in leaf_digest.cu and leaf_digest_single_block.cu by a test) ----
// Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md. Inputs longer than 240 bytes are cut into stripes of
// 64 bytes and blocks of 16 stripes. What the stripes of one block add to the eight lanes is a sum that wraps, so its
// order is free: the warps form these sums, for 64 blocks at a time, in `sums`. Only the chain over the blocks is
// serial; eight threads run it, a lane each. Every access to `sums` lies between two __syncthreads().
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define TILE_BLOCKS 64
#define BLOCK_BYTES 1024
#define P32_1 0x9E3779B1ULL
#define P64_1 0x9E3779B185EBCA87ULL
#define P64_2 0xC2B2AE3D27D4EB4FULL
#define P64_3 0x165667B19E3779F9ULL

__constant__ u64 SECRET[24] = {
    0xbe4ba423396cfeb8ULL, 0x1cad21f72c81017cULL, 0xdb979083e96dd4deULL, 0x1f67b3b7a4a44072ULL,
    0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL, 0x4c263a81e69035e0ULL,
    0xcb00c391bb52283cULL, 0xa32e531b8b65d088ULL, 0x4ef90da297486471ULL, 0xd8acdea946ef1938ULL,
    0x3f349ce33f76faa8ULL, 0x1d4f0bc7c7bbdcf9ULL, 0x3159b4cd4be0518aULL, 0x647378d9c97e9fc8ULL,
    0xc3ebd33483acc5eaULL, 0xeb6313faffa081c5ULL, 0x49daf0b751dd0d17ULL, 0x9e68d429265516d3ULL,
    0xfca1477d58be162bULL, 0xce31d07ad1b8f88fULL, 0x280416958f3acb45ULL, 0x7e404bbbcafbd7afULL,
};

// The 8 bytes of the secret at any byte offset.
__device__ u64 secret_at(u32 offset) {
    u32 word = offset >> 3, shift = 8 * (offset & 7);
    return shift ? (SECRET[word] >> shift) | (SECRET[word + 1] << (64 - shift)) : SECRET[word];
}

// The 8 bytes at any address. An unaligned word is put together from the two aligned words around it; each of them
// holds at least one of its bytes, so nothing is read outside the 8-byte words that the input touches.
__device__ u64 read64(const u8* at) {
    u32 shift = 8 * (u32)((u64)at & 7);
    const u64* word = (const u64*)((u64)at & ~7ULL);
    return shift ? (word[0] >> shift) | (word[1] << (64 - shift)) : word[0];
}

__device__ u64 read32(const u8* at) {
    return (u64)at[0] | (u64)at[1] << 8 | (u64)at[2] << 16 | (u64)at[3] << 24;
}

__device__ u64 swap64(u64 x) {
    x = (x & 0x00FF00FF00FF00FFULL) << 8 | (x >> 8 & 0x00FF00FF00FF00FFULL);
    x = (x & 0x0000FFFF0000FFFFULL) << 16 | (x >> 16 & 0x0000FFFF0000FFFFULL);
    return x << 32 | x >> 32;
}

__device__ u64 fold(u64 a, u64 b) { return (a * b) ^ __umul64hi(a, b); }

__device__ u64 avalanche(u64 h) {
    h = (h ^ (h >> 37)) * 0x165667919E3779F9ULL;
    return h ^ (h >> 32);
}

__device__ u64 mix16(const u8* at, u32 secret) {
    return fold(read64(at) ^ secret_at(secret), read64(at + 8) ^ secret_at(secret + 8));
}

// 0 to 16 bytes.
__device__ u64 hash_tiny(const u8* p, u32 n) {
    if (n > 8) {
        u64 low = read64(p) ^ (SECRET[3] ^ SECRET[4]), high = read64(p + n - 8) ^ (SECRET[5] ^ SECRET[6]);
        return avalanche(n + swap64(low) + high + fold(low, high));
    }
    if (n > 3) {
        u64 h = (read32(p + n - 4) + (read32(p) << 32)) ^ (SECRET[1] ^ SECRET[2]);
        h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
        h *= 0x9FB21C651E98DF25ULL;
        h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25ULL;
        return h ^ (h >> 28);
    }
    u64 h = SECRET[7] ^ SECRET[8];
    if (n) {
        u64 bytes = (u64)p[0] << 16 | (u64)p[n >> 1] << 24 | p[n - 1] | (u64)n << 8;
        h = bytes ^ ((SECRET[0] & 0xFFFFFFFFULL) ^ (SECRET[0] >> 32));
    }
    h = (h ^ (h >> 33)) * P64_2;
    h = (h ^ (h >> 29)) * P64_3;
    return h ^ (h >> 32);
}

// 17 to 240 bytes.
__device__ u64 hash_middle(const u8* p, u32 n) {
    u64 total = n * P64_1;
    if (n <= 128) {
        for (u32 i = 0; 32 * i < n; ++i)
            total += mix16(p + 16 * i, 32 * i) + mix16(p + n - 16 * (i + 1), 32 * i + 16);
        return avalanche(total);
    }
    for (u32 i = 0; i < 8; ++i) total += mix16(p + 16 * i, 16 * i);
    total = avalanche(total);
    for (u32 i = 8; i < n / 16; ++i) total += mix16(p + 16 * i, 16 * (i - 8) + 3);
    return avalanche(total + mix16(p + n - 16, 136 - 17));
}

__device__ u64 lane_start(u32 lane) {
    switch (lane) {
        case 0: return 0xC2B2AE3DULL;
        case 1: return P64_1;
        case 2: return P64_2;
        case 3: return P64_3;
        case 4: return 0x85EBCA77C2B2AE63ULL;
        case 5: return 0x85EBCA77ULL;
        case 6: return 0x27D4EB2F165667C5ULL;
        default: return P32_1;
    }
}

// The words of one block that thread t of a warp adds up: word t of each of four runs of 256 bytes, which is lane t % 8
// of stripes t / 8, t / 8 + 4, + 8 and + 12. So a warp's loads are coalesced, and a thread needs four words of the
// secret for any number of blocks. All loads of a whole block stand before their first use: one load in flight at a
// time would reach half of the memory's speed at best. Stripes that are not there are 0.
__device__ void load_block(const u8* p, u32 stripes, u32 t, u64* word) {
    const u64* at = (const u64*)((u64)p & ~7ULL) + t;
    const u32 shift = 8 * (u32)((u64)p & 7);
    if (stripes < 16) {
        for (u32 r = 0; r < 4; ++r) word[r] = (t >> 3) + 4 * r < stripes ? read64(p + 256 * r + 8 * t) : 0;
    } else if (shift == 0) {
#pragma unroll
        for (u32 r = 0; r < 4; ++r) word[r] = at[32 * r];
    } else {
        u64 next[4];
#pragma unroll
        for (u32 r = 0; r < 4; ++r) {
            word[r] = at[32 * r];
            next[r] = at[32 * r + 1];
        }
#pragma unroll
        for (u32 r = 0; r < 4; ++r) word[r] = (word[r] >> shift) | (next[r] << (64 - shift));
    }
}

// What the stripes of one block add to the lanes; the whole warp calls. Threads 0 to 7 get the sum of their lane.
__device__ u64 block_sum(const u64* word, u32 stripes, u32 t, const u64* key) {
    u64 products = 0, plain = 0;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
        u64 keyed = word[r] ^ key[r];
        if ((t >> 3) + 4 * r < stripes) products += (keyed & 0xFFFFFFFFULL) * (keyed >> 32);
        plain += word[r];
    }
    u64 sum = products + __shfl_xor_sync(0xFFFFFFFFu, plain, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
    return sum;
}

// More than 240 bytes. The whole block calls, a multiple of 32 threads; `sums` is shared, 8 * TILE_BLOCKS words.
__device__ u64 hash_long(const u8* p, u64 n, u64* sums) {
    const u32 t = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 7;
    const u64 whole = (n - 1) / BLOCK_BYTES, touched = (n - 1 + BLOCK_BYTES - 1) / BLOCK_BYTES;
    const u32 rest = (u32)((n - 1 - whole * BLOCK_BYTES) / 64);
    u64 key[4], acc = lane_start(lane);
    for (u32 r = 0; r < 4; ++r) key[r] = SECRET[(t >> 3) + 4 * r + (t & 7)];
    for (u64 first = 0; first < touched; first += TILE_BLOCKS) {
        u32 here = (u32)(touched - first < TILE_BLOCKS ? touched - first : TILE_BLOCKS);
        for (u32 b = warp; b < here; b += 2 * warps) {  // two blocks at a time, for more loads in flight
            const u32 c = b + warps < here ? b + warps : b;
            const u32 stripes_b = first + b < whole ? 16 : rest, stripes_c = first + c < whole ? 16 : rest;
            u64 word_b[4], word_c[4];
            load_block(p + (first + b) * BLOCK_BYTES, stripes_b, t, word_b);
            load_block(p + (first + c) * BLOCK_BYTES, stripes_c, t, word_c);
            u64 sum_b = block_sum(word_b, stripes_b, t, key), sum_c = block_sum(word_c, stripes_c, t, key);
            if (t < 8) {
                sums[8 * b + t] = sum_b;
                sums[8 * c + t] = sum_c;
            }
        }
        __syncthreads();
        if (threadIdx.x < 8) {
            for (u32 b = 0; b < here; ++b) {
                acc += sums[8 * b + lane];
                if (first + b < whole) acc = (acc ^ (acc >> 47) ^ SECRET[16 + lane]) * P32_1;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < 8) {
        const u8* last = p + n - 64;
        u64 keyed = read64(last + 8 * lane) ^ secret_at(121 + 8 * lane);
        sums[lane] = acc + (keyed & 0xFFFFFFFFULL) * (keyed >> 32) + read64(last + 8 * (lane ^ 1));
    }
    __syncthreads();
    u64 total = n * P64_1;
    if (threadIdx.x == 0)
        for (u32 i = 0; i < 4; ++i)
            total += fold(sums[2 * i] ^ secret_at(11 + 16 * i), sums[2 * i + 1] ^ secret_at(19 + 16 * i));
    __syncthreads();
    return avalanche(total);
}

// The hash of n bytes, in thread 0. The whole block calls with the same arguments.
__device__ u64 hash_bytes(const u8* p, u64 n, u64* sums) {
    if (n > 240) return hash_long(p, n, sums);
    if (threadIdx.x) return 0;
    return n > 16 ? hash_middle(p, (u32)n) : hash_tiny(p, (u32)n);
}

// One row of the table of leaves, as five 64-bit words: where the leaf's bytes are and how many, the number of its
// first chunk among those of all leaves, where its message starts in `messages` (in words), the words of its header.
// A message is a leaf's header, which the host writes, and its chunk digests, which the kernel writes behind it.
struct Row {
    u64 address, nbytes, first_chunk, message, header_words;
};

#define CHUNK 65536

__device__ void digest_chunk(const Row* row, u64 chunk, u64* messages, u64* sums) {
    u64 start = (chunk - row->first_chunk) * CHUNK, left = row->nbytes - start;
    u64 digest = hash_bytes((const u8*)row->address + start, left < CHUNK ? left : CHUNK, sums);
    // Canonical form: most significant byte first.
    if (threadIdx.x == 0) messages[row->message + row->header_words + chunk - row->first_chunk] = swap64(digest);
}

__device__ void digest_root(const Row* row, const u64* messages, u64* roots, u32 leaf, u64* sums) {
    u64 words = row->header_words + (row->nbytes + CHUNK - 1) / CHUNK;
    u64 digest = hash_bytes((const u8*)(messages + row->message), 8 * words, sums);
    if (threadIdx.x == 0) roots[leaf] = digest;
}
// ---- end of the part kept equal ----

// The leaf that owns a chunk: the last row whose first chunk is not behind it. Leaves of zero bytes own none, and the
// row behind them has the same first chunk, so the last one is the owner.
__device__ u32 owner(const Row* rows, u32 leaves, u64 chunk) {
    u32 low = 0, high = leaves;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (rows[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(256) leaf_chunks(const Row* rows, unsigned int leaves, u64* messages) {
    __shared__ u64 sums[8 * TILE_BLOCKS];
    digest_chunk(rows + owner(rows, leaves, blockIdx.x), blockIdx.x, messages, sums);
}

extern "C" __global__ void __launch_bounds__(256) leaf_roots(const Row* rows, const u64* messages, u64* roots) {
    __shared__ u64 sums[8 * TILE_BLOCKS];
    digest_root(rows + blockIdx.x, messages, roots, blockIdx.x, sums);
}
