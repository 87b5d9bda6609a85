// Origins of the kernels: the fatbin, NVRTC, the cache; and the messages if there are none.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "cuda/kernel_cache.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/kernel_loader.hpp"
#include "cuda/nvrtc.hpp"
#include "fakes.hpp"

using namespace tdcore;
using namespace tdcore::testing;
namespace fs = std::filesystem;

namespace {

FakeNvrtc& fresh_nvrtc() {
  FakeNvrtc& fake = state_in<FakeNvrtc>(TDCORE_FAKE_NVRTC, "tdcore_fake_nvrtc");
  fake = FakeNvrtc{};
  return fake;
}

/// A temporary folder, removed by the destructor.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tdcore-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  fs::path only_file() const {
    fs::path found;
    int files = 0;
    for (const auto& entry : fs::directory_iterator(path_)) found = entry.path(), ++files;
    REQUIRE(files == 1);
    return found;
  }

 private:
  fs::path path_;
};

struct Bench {
  FakeCuda& cuda_state = fresh_cuda();
  FakeNvrtc& nvrtc = fresh_nvrtc();
  std::unique_ptr<const cuda::Driver> driver = fake_driver();
  cuda::KernelOptions options{
      .choice = cuda::KernelChoice::kAny, .folders = {TDCORE_FAKE_PACKAGES}, .cache_folder = ""};
  std::string reason;

  Bench() { cuda_state.contexts = {reinterpret_cast<void*>(0xc0)}; }
  cuda::Kernels load(int architecture = 90) {
    reason.clear();
    return cuda::load_kernels(*driver, architecture, 4, options, reason);
  }
};

void the_source_holds_the_kernels_and_everything_that_they_include() {
  const std::string_view source = cuda::kernel_source();
  for (const char* const name : {"tdcore_stats(", "tdcore_pack(", "tdcore_commit("}) {
    REQUIRE(source.find(name) != std::string_view::npos);
  }
  // The remaining code is for the CPU: tests/cpp/gpu_emulation.hpp.
  std::size_t includes = 0;
  for (std::size_t at = 0; (at = source.find("#include \"", at)) != std::string_view::npos; ++at) ++includes;
  REQUIRE(includes <= 1);
}

void the_fatbin_is_a_fatbin_that_says_its_architectures() {
  if (cuda::kernel_fatbin().empty()) return;  // a build without nvcc
  const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};
  REQUIRE(cuda::kernel_fatbin().starts_with(std::string_view(reinterpret_cast<const char*>(magic), 4)));
  REQUIRE(cuda::kernel_fatbin_architectures().find("sm_90") != std::string_view::npos);
}

void the_fatbin_comes_first() {
  if (cuda::kernel_fatbin().empty()) return;
  Bench bench;
  const cuda::Kernels kernels = bench.load();
  REQUIRE(kernels.module != nullptr && kernels.from == "fatbin" && bench.nvrtc.compiled == 0);
  REQUIRE(kernels.stats.resident_blocks == 4 * 8);
  REQUIRE(bench.reason.empty());
}

void a_fatbin_that_the_driver_refuses_makes_nvrtc_compile() {
  Bench bench;
  bench.cuda_state.refused_images = {"\x50\xed"};
  const cuda::Kernels kernels = bench.load();
  REQUIRE(kernels.module != nullptr && kernels.from == "nvrtc");
  REQUIRE(bench.nvrtc.compiled == 1 && bench.nvrtc.option == "--gpu-architecture=sm_90");
  REQUIRE(bench.cuda_state.images.back() == "cubi");
}

void a_choice_is_kept_to() {
  Bench bench;
  bench.options.choice = cuda::KernelChoice::kNvrtc;
  REQUIRE(bench.load().from == "nvrtc");
  bench.options.choice = cuda::KernelChoice::kFatbin;
  bench.cuda_state.refused_images = {"\x50\xed"};
  REQUIRE(bench.load().module == nullptr);
  REQUIRE(bench.reason.find("TDCORE_CUDA_KERNELS=fatbin") != std::string::npos);
}

void without_any_kernels_it_is_said_what_to_install() {
  Bench bench;
  bench.options.choice = cuda::KernelChoice::kNvrtc;
  bench.cuda_state.refused_images = {"cubi", "\x50\xed", ".ver", "\x7f"};
  REQUIRE(bench.load().module == nullptr);
  REQUIRE(bench.reason.find("pip install \"tdcore-capture[cuda12]\"") != std::string::npos);
}

void what_does_not_compile_is_told_with_the_compilers_words() {
  Bench bench;
  bench.nvrtc.fails = true;
  const auto nvrtc = cuda::Nvrtc::open(TDCORE_FAKE_NVRTC);
  std::string image;
  REQUIRE(!nvrtc->compile("", 90, image, bench.reason));
  REQUIRE(bench.reason.find("NVRTC_ERROR_OF_THE_FAKE kernels.cuh(1): error") != std::string::npos);
}

void kernels_are_compiled_once_and_taken_from_the_cache_after() {
  Bench bench;
  const Folder folder;
  bench.options.choice = cuda::KernelChoice::kNvrtc;
  bench.options.cache_folder = folder.path();
  REQUIRE(bench.load().module != nullptr && bench.load().module != nullptr);
  REQUIRE(bench.nvrtc.compiled == 1);
  REQUIRE(bench.load(80).module != nullptr);  // another architecture is another image
  REQUIRE(bench.nvrtc.compiled == 2);
}

void a_damaged_or_foreign_cache_file_is_not_used() {
  const Folder folder;
  const cuda::KernelCache cache(folder.path());
  std::string image;
  REQUIRE(!cache.load("key", image));
  cache.store("key", "image");
  REQUIRE(cache.load("key", image) && image == "image");
  REQUIRE(!cache.load("other", image));
  const fs::path file = folder.only_file();
  fs::permissions(file, fs::perms::owner_all | fs::perms::others_write);
  REQUIRE(!cache.load("key", image));
  fs::permissions(file, fs::perms::owner_all);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(21) << '!';
  REQUIRE(!cache.load("key", image));
  fs::resize_file(file, 3);
  REQUIRE(!cache.load("key", image));
  cache.store("key", "again");
  REQUIRE(cache.load("key", image) && image == "again");
}

void without_a_folder_that_can_be_written_nothing_is_kept_and_nothing_fails() {
  for (const char* const folder : {"", "/proc/tdcore", "/dev/null/tdcore"}) {
    const cuda::KernelCache cache(folder);
    std::string image;
    cache.store("key", "image");
    REQUIRE(!cache.load("key", image));
  }
}

void the_nearest_architecture_is_chosen() {
  const int known[] = {75, 80, 86, 90, 100};
  const auto chosen = [&](int architecture) {
    const cuda::CompileTarget target = cuda::choose_target(architecture, known);
    return target.machine_code ? target.architecture : -target.architecture;
  };
  REQUIRE(chosen(90) == 90 && chosen(86) == 86);
  REQUIRE(chosen(89) == 86 && chosen(103) == 100);  // of its family, older
  REQUIRE(chosen(120) == -100);                     // PTX
  REQUIRE(chosen(70) == 0);
}

void the_cache_lies_where_the_environment_says() {
  ::setenv("HOME", "/h", 1);
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("TDCORE_CACHE");
  REQUIRE(cuda::default_cache_folder() == "/h/.cache/tdcore/kernels");
  ::setenv("XDG_CACHE_HOME", "not/absolute", 1);
  REQUIRE(cuda::default_cache_folder() == "/h/.cache/tdcore/kernels");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  REQUIRE(cuda::default_cache_folder() == "/x/tdcore/kernels");
  ::setenv("TDCORE_CACHE", "/t", 1);
  REQUIRE(cuda::default_cache_folder() == "/t/kernels");
}

}  // namespace

int main() {
#define CASE(name) it(#name, name)
  CASE(the_source_holds_the_kernels_and_everything_that_they_include);
  CASE(the_fatbin_is_a_fatbin_that_says_its_architectures);
  CASE(the_fatbin_comes_first);
  CASE(a_fatbin_that_the_driver_refuses_makes_nvrtc_compile);
  CASE(a_choice_is_kept_to);
  CASE(without_any_kernels_it_is_said_what_to_install);
  CASE(what_does_not_compile_is_told_with_the_compilers_words);
  CASE(kernels_are_compiled_once_and_taken_from_the_cache_after);
  CASE(a_damaged_or_foreign_cache_file_is_not_used);
  CASE(without_a_folder_that_can_be_written_nothing_is_kept_and_nothing_fails);
  CASE(the_nearest_architecture_is_chosen);
  CASE(the_cache_lies_where_the_environment_says);
#undef CASE
  return result();
}
