// Random arguments for calls through hetero.h: right ones, and wrong ones that still name only memory that is there.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

// Bytes that end where a page without access begins, so that a byte too far ends the process in every build.
class Buffer {
  public:
    explicit Buffer(size_t bytes) : bytes_(bytes) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        whole_ = (bytes + kBefore + page - 1) / page * page + page;
        void *at = mmap(nullptr, whole_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) abort();
        start_ = static_cast<uint8_t *>(at);
        mprotect(start_ + whole_ - page, page, PROT_NONE);
        data_ = start_ + whole_ - page - bytes;
    }
    ~Buffer() { munmap(start_, whole_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    uint8_t *data() const { return data_; }
    size_t bytes() const { return bytes_; }

  private:
    static constexpr size_t kBefore = 8;  // so that an address a byte lower is there, too
    size_t bytes_, whole_;
    uint8_t *start_, *data_;
};

// One call's arguments. With `wrong` about one in ten of those that pass through it is changed.
class Chance {
  public:
    Chance(uint64_t seed) : state_(seed * 2654435769u + 1) {}

    void begin(bool wrong) {
        wrong_ = wrong;
        changed_ = false;
        buffers_.clear();
    }
    bool changed() const { return changed_; }

    uint64_t bits() {  // xorshift64*
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 2685821657736338717u;
    }
    int64_t below(int64_t n) { return int64_t(bits() >> 1) % n; }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }

    uint8_t *room(int64_t bytes, bool fill = true) {
        buffers_.emplace_back(new Buffer(size_t(bytes)));
        uint8_t *data = buffers_.back()->data();
        for (int64_t i = 0; fill && i < bytes; i += 8) {
            const uint64_t some = bits();
            memcpy(data + i, &some, size_t(bytes - i < 8 ? bytes - i : 8));
        }
        return data;
    }
    // Values like those of a model; now and then one of any bits.
    float *floats(int64_t n) {
        auto *values = reinterpret_cast<float *>(room(4 * n, false));
        for (int64_t i = 0; i < n; i++) values[i] = float(int32_t(bits() >> 32)) * 1e-9f;
        if (n && !below(8)) {
            const uint32_t any = uint32_t(bits());
            memcpy(values + below(n), &any, 4);
        }
        return values;
    }

    // A count, or one that is out of range or almost right.
    int64_t count(int64_t right) {
        if (!change()) return right;
        const int64_t others[] = {0, -1, 1, right - 1, right + 1, 2 * right, right / 2, INT64_MAX, INT64_MIN, 1ll << 31,
                                  (1ll << 32) + right, 1ll << 24, 1ll << 62, -right, INT64_MAX / 4};
        return others[below(15)];
    }
    // The length of an array of elements: never more than there are.
    int64_t length(int64_t right) { return change() ? between(-1, right) : right; }
    // A length in bytes: fewer than there are, or more than any memory.
    size_t bytes(int64_t right) {
        if (!change()) return size_t(right);
        const size_t some = size_t(right);
        const size_t others[] = {0, some / 2, some ? some - 1 : 0, some > 4 ? some - 4 : 0, SIZE_MAX, size_t(1) << 62};
        return others[below(6)];
    }
    // The length in bytes of memory of which a call may use a part: never more than there are.
    size_t capacity(int64_t right) { return size_t(change() ? below(right + 1) : right); }
    int32_t number(int32_t right) {
        if (!change()) return right;
        const int32_t others[] = {-1, 1 << 30, INT32_MIN, INT32_MAX, right + 1, right - 1, int32_t(below(64))};
        return others[below(7)];
    }
    template <class T> T *at(T *right) {
        if (!right || !change()) return right;
        if (below(2)) return nullptr;
        return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(right) - 1);
    }

    template <class T> T *or_null(T *right) { return change() ? nullptr : right; }

  private:
    bool change() {
        if (!wrong_ || below(10)) return false;
        return changed_ = true;
    }
    uint64_t state_;
    bool wrong_ = false, changed_ = false;
    std::vector<std::unique_ptr<Buffer>> buffers_;
};
