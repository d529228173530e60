# clalloc: `make run` shows it at work, `make test` runs every test. Each target installs what it needs.
#
#   deps      install the Debian packages that every target together needs
#   build     build/libclalloc.so and the Lua module build/clalloc/core.so
#   run       examples/tour.lua                      (ARGS='FILE...' replays recorded traces too)
#   repl      a Lua prompt with the module as `cl`
#   env       print LUA_PATH and LUA_CPATH:          eval "$(make -s env)"
#   test      every spec and every C test            (SPEC=spec/pool_spec.lua ARGS=--filter=trim)
#   test-rusticl  the same on Mesa's rusticl, which has neither fp64 nor shared virtual memory
#   lint      formatting, static analysis, layering
#   sanitize  the tests under ASan + UBSan, TSan and valgrind
#   bench     the figures, one a line                (ARGS goes to examples/bench/run.lua)
#   docs      the reference as HTML                  build/docs/index.html
#   install   the module, the headers, the library   (PREFIX=/usr/local DESTDIR=)
#   uninstall, format (rewrite the C sources in place), clean
#
# CC=clang works; DEBUG=1 builds without optimisation and with the core's self-checks; V=1 shows the commands.

VERSION = 0.1.0
SOVERSION = 0
PREFIX = /usr/local

.DEFAULT_GOAL = build
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- Packages, by what needs them ---------------------------------------------------------------

PACKAGES_build = gcc libc6-dev make pkg-config lua5.4 liblua5.4-dev ocl-icd-opencl-dev opencl-headers pocl-opencl-icd
PACKAGES_test = clang lua-argparse lua-busted mesa-opencl-icd oclgrind luarocks python3
PACKAGES_lint = clang-format clang-tidy cppcheck lua-check
PACKAGES_sanitize = valgrind
PACKAGES_bench = libmimalloc-dev python3-pyopencl python3-numpy
PACKAGES_docs = lua-ldoc lua-markdown

# ---- Files --------------------------------------------------------------------------------------

B = build
CORE_SRC := $(wildcard $(patsubst %,src/%/*.c,driver runtime pool host heap trace))
LUA_SRC := $(wildcard src/lua/*.c)
TEST_SRC := $(wildcard spec/c/*.c)
BENCH_SRC := $(wildcard examples/bench/*.c)
C_FILES := $(wildcard src/*.h src/*/*.[ch] spec/c/*.[ch] examples/*/*.[ch])

CL_FILES := $(wildcard src/*/kernels/*.cl spec/c/*/*.cl)

CORE_OBJ = $(CORE_SRC:%.c=$(B)/obj/%.o)
LUA_OBJ = $(LUA_SRC:%.c=$(B)/obj/%.o)
TESTS = $(TEST_SRC:spec/c/%.c=$(B)/spec/%)
BENCHES = $(BENCH_SRC:examples/bench/%.c=$(B)/bench/%)

ARCHIVE = $(B)/libclalloc.a
LIBRARY = $(B)/libclalloc.so.$(SOVERSION)
MODULE = $(B)/clalloc/core.so

# ---- Flags --------------------------------------------------------------------------------------

ifeq ($(origin CC),default)
CC = gcc
endif
WARNINGS = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wconversion \
  -Wno-sign-conversion
WERROR = -Werror
OPTIMISE = $(if $(DEBUG),-O0 -DCLA_DEBUG=1,-O2)
DEFINES = -D_GNU_SOURCE -DCL_TARGET_OPENCL_VERSION=300
SANITIZE =
LANGUAGE = -std=c11 $(DEFINES) -Isrc $(WARNINGS)
ALL_CFLAGS = $(LANGUAGE) $(WERROR) $(OPTIMISE) -g -fPIC -fvisibility=hidden -pthread $(SANITIZE) $(CFLAGS)
ALL_LDFLAGS = -pthread $(SANITIZE) $(LDFLAGS)
LIBS = -lOpenCL -lm
# The interpreter that loads the module brings Lua along: the module itself needs the headers only.
LUA_CFLAGS = $(shell pkg-config --cflags lua5.4)
LUA_LIBS = $(shell pkg-config --libs lua5.4)

# Every program started from here finds the module of this build.
LUA = lua5.4 -W
export LUA_PATH = $(CURDIR)/lua/?.lua;$(CURDIR)/lua/?/init.lua;;
export LUA_CPATH = $(CURDIR)/$(B)/?.so;;
unexport LUA_PATH_5_4 LUA_CPATH_5_4

SAY = @$(if $(V),:,printf '  %-4s %s\n')
DO = $(if $(V),,@)
# Compiling goes through a second make: it starts once the packages are there, and uses every core.
SUBMAKE = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# ---- What people type ---------------------------------------------------------------------------

.PHONY: deps build run repl env test test-rusticl lint sanitize bench docs install uninstall format clean

deps: deps-build-test-lint-sanitize-bench-docs

deps-%:
	@.ci/deps $(foreach group,$(subst -, ,$*),$(PACKAGES_$(group)))

build: deps-build
	@+$(SUBMAKE) libraries

run: build
	$(DO)$(LUA) examples/tour.lua $(ARGS)

repl: build
	$(DO)lua5.4 -i -l cl=clalloc -e 'print(cl)'

env:
	@printf "export LUA_PATH='%s'\nexport LUA_CPATH='%s'\n" '$(LUA_PATH)' '$(LUA_CPATH)'

# busted's own start script picks whatever `lua` is, here it must be 5.4.
BUSTED = /usr/bin/busted --output=spec/report.lua $(if $(wildcard spec/helper.lua),--helper=spec/helper.lua)
SPEC = spec

test: deps-build-test
	@+$(SUBMAKE) libraries tests
	$(DO)CLALLOC_BUILD=$(B) $(LUA) $(BUSTED) $(ARGS) $(SPEC)

test-rusticl: export RUSTICL_ENABLE = llvmpipe
test-rusticl: export CLALLOC_DEVICE = llvmpipe
test-rusticl: test

bench: deps-build-bench
	@+$(SUBMAKE) libraries benches
	$(DO)CLALLOC_BUILD=$(B) $(LUA) examples/bench/run.lua $(ARGS)

# Any warning of LDoc's is an error.
docs: deps-build-docs
	@+$(SUBMAKE) libraries
	$(DO)rm -rf build/docs && $(LUA) docs/reference.lua build/reference
	$(DO)cd docs && ldoc --quiet --fatalwarnings -c config.ld .
	$(SAY) DOCS build/docs/index.html

clean:
	rm -rf build

# ---- Compiling ----------------------------------------------------------------------------------

.PHONY: libraries tests benches FORCE
libraries: $(LIBRARY) $(B)/libclalloc.so $(MODULE)
	@:
tests: $(TESTS)
	@:
benches: $(BENCHES)
	@:

# Changes, and so rebuilds everything, exactly when a flag does.
COMMANDS = $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(COMMANDS)' | cmp -s - $@ || printf '%s\n' '$(COMMANDS)' >$@

$(B)/obj/%.o: %.c Makefile $(B)/flags
	$(SAY) CC $<
	@mkdir -p $(@D)
	$(DO)$(CC) $(ALL_CFLAGS) $(EXTRA_CFLAGS) -MMD -MP -c $< -o $@

$(LUA_OBJ) $(B)/obj/spec/c/lua_%.o: EXTRA_CFLAGS = $(LUA_CFLAGS)

# What source.c takes in by the assembler, which writes no dependencies. HEAP_TEXT is what programs get.
HEAP_TEXT = src/heap/heap_layout.h \
  $(patsubst %,src/heap/kernels/%.cl,begin warp items words maps pages reserve slots runs free calls)
$(B)/obj/src/heap/source.o: src/heap/heap_layout.h $(wildcard src/heap/kernels/*.cl)

$(ARCHIVE): $(CORE_OBJ)
	$(SAY) AR $@
	$(DO)rm -f $@ && $(AR) rcs $@ $^

$(LIBRARY): $(CORE_OBJ)
	$(SAY) LINK $@
	$(DO)$(CC) -shared -Wl,-soname,$(@F) $(if $(SANITIZE),,-Wl,-z,defs) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(B)/libclalloc.so: $(LIBRARY)
	$(DO)ln -sf $(<F) $@

# The module holds the whole core and shows only luaopen_*: it never mixes with a libclalloc.so in the same process.
$(MODULE): $(LUA_OBJ) $(ARCHIVE)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(DO)$(CC) -shared -Wl,--exclude-libs,ALL $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# A C test is one program with the core inside; lua_*.c get the binding and a Lua interpreter too.
$(B)/spec/lua_%: $(B)/obj/spec/c/lua_%.o $(LUA_OBJ) $(ARCHIVE)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(DO)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LUA_LIBS) $(LIBS)

$(B)/spec/%: $(B)/obj/spec/c/%.o $(ARCHIVE)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(DO)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# heap_warp plays the heap's kernels: clang compiles their text for this machine, in four ways.
PLAYED = warp scalar crowds cpu
PLAYED_TEXT = $(patsubst src/heap/kernels/warp.cl,spec/c/warp/warp.cl,$(HEAP_TEXT)) spec/c/warp/kernels.cl
PLAYED_FLAGS = -cl-std=CL1.2 -D__OPENCL_VERSION__=120 -Xclang -finclude-default-header -O1 -g -fsanitize=thread \
  $(addprefix -mllvm -tsan-,distinguish-volatile instrument-func-entry-exit=0 instrument-memintrinsics=0 \
  instrument-atomics=0)
PLAYED_FLAGS_warp = -U__x86_64__ -U__aarch64__
PLAYED_FLAGS_scalar = $(PLAYED_FLAGS_warp) -DCLA_HEAP_SCALAR
PLAYED_FLAGS_crowds = $(PLAYED_FLAGS_scalar) -DCLA_HEAP_TEST_CROWDS
PLAYED_FLAGS_cpu = -DCLA_HEAP_SCALAR

$(B)/spec/heap_warp: $(PLAYED:%=$(B)/obj/spec/c/warp/%.o)
$(B)/obj/spec/c/warp/%.o: $(PLAYED_TEXT) Makefile
	$(SAY) CLANG '$(@F), the kernels as heap_warp plays them'
	@mkdir -p $(@D)
	$(DO)cat $(PLAYED_TEXT) | clang -x cl - $(PLAYED_FLAGS) $(PLAYED_FLAGS_$*) -DBUILD=$* -c -o $@

$(B)/bench/%: $(B)/obj/examples/bench/%.o $(ARCHIVE)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(DO)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(if $(shell grep -l '<mimalloc' examples/bench/$*.c),-lmimalloc) $(LIBS)

.SECONDARY:
-include $(patsubst %.c,$(B)/obj/%.d,$(CORE_SRC) $(LUA_SRC) $(TEST_SRC) $(BENCH_SRC))

# ---- Lint ---------------------------------------------------------------------------------------

.PHONY: tidy
TIDY = $(patsubst %.c,$(B)/tidy/%.log,$(filter src/% spec/%,$(filter %.c,$(C_FILES))))

lint: deps-build-lint
	$(SAY) LINT clang-format
	$(DO)clang-format --dry-run -Werror $(C_FILES) $(CL_FILES)
	$(SAY) LINT 'driver calls'
	$(DO).ci/check-driver-calls
	$(SAY) LINT luacheck
	$(DO)luacheck --no-color --quiet $(wildcard lua spec examples docs)
	$(SAY) LINT cppcheck
	$(DO)cppcheck --quiet -j $$(nproc) --std=c11 --enable=warning,performance,portability --inline-suppr \
	  --suppress=missingIncludeSystem --error-exitcode=1 $(DEFINES) -Isrc $(filter %.c,$(C_FILES))
	@+$(SUBMAKE) --keep-going tidy

tidy: $(TIDY)
	@:

$(B)/tidy/%.log: %.c $(filter %.h,$(C_FILES)) .clang-tidy Makefile
	$(SAY) TIDY $<
	@mkdir -p $(@D)
	$(DO)clang-tidy --quiet $< -- $(LANGUAGE) $(LUA_CFLAGS) >$@ 2>&1 || { cat $@; exit 1; }

format: deps-lint
	clang-format -i $(C_FILES) $(CL_FILES)

# ---- Sanitizers ---------------------------------------------------------------------------------

# Where the C tests run: all of them under ASan + UBSan, those named threads_* under TSan too.
ASAN = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TSAN = -fsanitize=thread
INSTRUMENTED = CC=gcc WERROR= OPTIMISE='-O1 -DCLA_DEBUG=1'

# The specs of the binding run under ASan, those of MEMCHECK_SPECS under valgrind too; those about what is written in Lua
# would add nothing but minutes. Lua itself is not instrumented, so ASan has to be loaded before it; through LD_PRELOAD it
# would get into every program a spec starts.
ASAN_SPECS = $(wildcard $(patsubst %,spec/%_spec.lua,arguments buffer coroutine device faults garbage guard heap \
  heap_faults heap_object host host_faults kernel out_of_memory plan policy_decisions policy_wrap pool pool_trace \
  program random reuse stream tensor_memory two_devices))
MEMCHECK_SPECS = $(wildcard $(patsubst %,spec/%_spec.lua,buffer stream host policy_wrap))
LD_SO = $(firstword $(wildcard /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*))
ASAN_LUA = $(LD_SO) --preload "$$(gcc -print-file-name=libasan.so)" /usr/bin/$(LUA)

# Drivers that are loaded but not used leak without a name to suppress them by. Some kernels place the heap where
# the older sanitizers do not expect it: no address randomisation, where that may be asked for. LLVM, inside PoCL,
# takes the alternate signal stack. A thread's TLS block from malloc at 16 bytes into a page is taken for one of glibc
# before 2.25 by sanitizers up to GCC 13, with an address and a size before it, and the leak check crashes there
# (github.com/google/sanitizers/issues/1322): such blocks are not looked into.
ONLY_POCL = OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
FIXED = $(shell setarch -R true 2>/dev/null && echo setarch -R)
SANITIZER_OPTIONS = $(ONLY_POCL) \
  ASAN_OPTIONS=use_sigaltstack=0:detect_stack_use_after_return=1:strict_string_checks=1:intercept_tls_get_addr=0 \
  LSAN_OPTIONS=suppressions=.ci/lsan.supp:print_suppressions=0 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS=suppressions=.ci/tsan.supp:halt_on_error=1:second_deadlock_stack=1:intercept_tls_get_addr=0

# The stages share nothing but what is built before: they run side by side, each of them on about one core.
STAGES = asan-specs asan-c memcheck-specs tsan-c
.PHONY: $(STAGES)

sanitize: deps-build-test-sanitize
	@+$(SUBMAKE) libraries
	@+$(SUBMAKE) B=build/asan SANITIZE='$(ASAN)' $(INSTRUMENTED) libraries tests
	@+$(SUBMAKE) B=build/tsan SANITIZE='$(TSAN)' $(INSTRUMENTED) TEST_SRC='$(wildcard spec/c/threads_*.c)' tests
	@+$(SUBMAKE) --output-sync=target $(STAGES)

asan-c:
	$(SAY) ASAN 'the C tests'
	$(DO)$(SANITIZER_OPTIONS) CLALLOC_BUILD=build/asan $(FIXED) $(LUA) $(BUSTED) spec/c_spec.lua

tsan-c:
	$(SAY) TSAN 'the C tests threads_*'
	$(DO)$(SANITIZER_OPTIONS) CLALLOC_BUILD=build/tsan $(FIXED) $(LUA) $(BUSTED) spec/c_spec.lua

asan-specs:
	$(SAY) ASAN '$(ASAN_SPECS)'
	$(DO)[ -z '$(ASAN_SPECS)' ] || \
	  $(SANITIZER_OPTIONS) $(FIXED) $(ASAN_LUA) $(BUSTED) --cpath='$(CURDIR)/build/asan/?.so' $(ASAN_SPECS)

memcheck-specs:
	$(SAY) VALG '$(MEMCHECK_SPECS)'
	$(DO)[ -z '$(MEMCHECK_SPECS)' ] || \
	  $(ONLY_POCL) HWLOC_COMPONENTS=-x86 valgrind --quiet --error-exitcode=9 --leak-check=full \
	  --errors-for-leak-kinds=definite --show-leak-kinds=definite --suppressions=.ci/valgrind.supp \
	  $(LUA) $(BUSTED) $(MEMCHECK_SPECS)

# ---- Install ------------------------------------------------------------------------------------

LUA_FOLDERS = $(patsubst lua/clalloc/%/,%,$(wildcard lua/clalloc/*/))
LUA_DIR = $(DESTDIR)$(PREFIX)/share/lua/5.4/clalloc
MODULE_DIR = $(DESTDIR)$(PREFIX)/lib/lua/5.4/clalloc
LIB_DIR = $(DESTDIR)$(PREFIX)/lib
INCLUDE_DIR = $(DESTDIR)$(PREFIX)/include

define PKG_CONFIG_FILE
prefix=$(PREFIX)
includedir=$${prefix}/include
libdir=$${prefix}/lib

Name: clalloc
Description: a caching device allocator for OpenCL
Version: $(VERSION)
Requires: OpenCL
Cflags: -I$${includedir}
Libs: -L$${libdir} -lclalloc
endef

install: build
	install -d $(LUA_FOLDERS:%=$(LUA_DIR)/%) $(MODULE_DIR) $(LIB_DIR)/pkgconfig $(INCLUDE_DIR)
	install -m 644 lua/clalloc/*.lua $(LUA_DIR)
	for folder in $(LUA_FOLDERS); do install -m 644 lua/clalloc/$$folder/*.lua $(LUA_DIR)/$$folder || exit 1; done
	install -m 755 $(MODULE) $(MODULE_DIR)/core.so
	install -m 755 $(LIBRARY) $(LIB_DIR)
	ln -sf $(notdir $(LIBRARY)) $(LIB_DIR)/libclalloc.so
	install -m 644 src/clalloc.h $(INCLUDE_DIR)
	cat $(HEAP_TEXT) >$(INCLUDE_DIR)/clalloc_heap.cl && chmod 644 $(INCLUDE_DIR)/clalloc_heap.cl
	$(file >$(B)/clalloc.pc,$(PKG_CONFIG_FILE))
	install -m 644 $(B)/clalloc.pc $(LIB_DIR)/pkgconfig

uninstall:
	rm -rf $(LUA_DIR) $(MODULE_DIR)
	rm -f $(LIB_DIR)/libclalloc.so $(LIB_DIR)/$(notdir $(LIBRARY)) $(LIB_DIR)/pkgconfig/clalloc.pc
	rm -f $(INCLUDE_DIR)/clalloc.h $(INCLUDE_DIR)/clalloc_heap.cl
