// Checksums compared with published vectors, and all methods to compute them compared with each other.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/crc32c.hpp"

namespace {

int failures = 0;

void check(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what);
    ++failures;
  }
}

std::uint32_t reference(const unsigned char* at, std::size_t bytes) {  // bit by bit, from the definition
  std::uint32_t crc = ~std::uint32_t{0};
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78U : crc >> 1;
    }
  }
  return ~crc;
}

void published_vectors_match() {
  unsigned char zeros[32] = {};
  unsigned char ones[32];
  unsigned char up[32];
  unsigned char down[32];
  std::memset(ones, 0xff, sizeof ones);
  for (unsigned i = 0; i < 32; ++i) {
    up[i] = static_cast<unsigned char>(i);
    down[i] = static_cast<unsigned char>(31 - i);
  }
  using tdcore::crc32c;
  using tdcore::crc32c_table;
  for (auto* way : {+[](const void* d, std::uint64_t n) { return crc32c(d, n); },
                    +[](const void* d, std::uint64_t n) { return crc32c_table(d, n); }}) {
    check(way(zeros, 32) == 0x8a9136aa, "RFC 3720: 32 bytes of zeros");
    check(way(ones, 32) == 0x62a8ab43, "RFC 3720: 32 bytes of ones");
    check(way(up, 32) == 0x46dd794e, "RFC 3720: ascending");
    check(way(down, 32) == 0x113fdb5c, "RFC 3720: descending");
    check(way("123456789", 9) == 0xe3069283, "check value of 123456789");
    check(way("", 0) == 0, "empty input");
  }
}

void every_length_and_alignment_matches_the_definition() {
  std::mt19937_64 random{1};
  std::vector<unsigned char> bytes(120'000);
  for (auto& byte : bytes) {
    byte = static_cast<unsigned char>(random());
  }
  for (int bytes_wanted :
       {0, 1, 7, 8, 9, 63, 64, 255, 767, 768, 769, 1000, 24575, 24576, 24577, 25400, 100'003}) {
    for (int start : {0, 1, 3, 8, 13}) {
      const auto length = static_cast<std::size_t>(bytes_wanted);
      const unsigned char* at = bytes.data() + start;
      const std::uint32_t expected = reference(at, length);
      check(tdcore::crc32c(at, length) == expected, "crc32c against the definition");
      check(tdcore::crc32c_table(at, length) == expected, "crc32c_table against the definition");
    }
  }
}

void pieces_chain_and_combine() {
  std::mt19937_64 random{2};
  std::vector<unsigned char> bytes(70'000);
  for (auto& byte : bytes) {
    byte = static_cast<unsigned char>(random());
  }
  const std::uint32_t whole = tdcore::crc32c(bytes.data(), bytes.size());
  for (std::size_t cut :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{69'999}, bytes.size()}) {
    const std::uint32_t a = tdcore::crc32c(bytes.data(), cut);
    const std::uint32_t b = tdcore::crc32c(bytes.data() + cut, bytes.size() - cut);
    check(tdcore::crc32c(bytes.data() + cut, bytes.size() - cut, a) == whole, "seed continues a checksum");
    check(tdcore::crc32c_combine(a, b, bytes.size() - cut) == whole, "combine joins two checksums");
  }
}

}  // namespace

int main() {
  published_vectors_match();
  every_length_and_alignment_matches_the_definition();
  pieces_chain_and_combine();
  return failures == 0 ? 0 : 1;
}
