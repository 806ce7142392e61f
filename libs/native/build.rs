//! Builds the C++ shim against the libtorch that `LIBTORCH` names (the folder that holds `include` and `lib`).
//!
//! If `GRPO_CUDA` names a folder of headers (e2e/setup/cuda-headers.sh), ranks may use GPUs, and NCCL between them. The
//! result then needs libtorch's CUDA libraries at run time.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=GRPO_CUDA");
    println!("cargo:rerun-if-changed=src/call.h");
    println!("cargo:rerun-if-changed=src/device.cc");
    println!("cargo:rerun-if-changed=src/collectives.cc");
    println!("cargo:rerun-if-changed=src/attention.cc");
    println!("cargo:rerun-if-changed=src/fused.cc");
    println!("cargo:rerun-if-changed=src/dropout.cc");
    println!("cargo:rerun-if-changed=src/linear.cc");
    println!("cargo:rerun-if-changed=src/memory.cc");
    println!("cargo:rerun-if-changed=src/experts.cc");
    println!("cargo:rerun-if-changed=src/routing.cc");
    println!("cargo:rerun-if-changed=src/recorder.cc");
    println!("cargo:rerun-if-changed=src/recorder.h");
    println!("cargo:rerun-if-changed=src/profiler.cc");
    println!("cargo:rerun-if-changed=src/flash.cc");
    println!("cargo:rerun-if-changed=src/flash.h");
    println!("cargo:rerun-if-changed=src/head.cc");
    println!("cargo:rerun-if-changed=src/fused.h");
    println!("cargo:rerun-if-changed=src/kernels.h");
    println!("cargo:rerun-if-changed=src/kernels.cc");
    println!("cargo:rerun-if-changed=src/kernels.cu");
    let Ok(torch) = std::env::var("LIBTORCH") else {
        println!("cargo:warning=LIBTORCH is not set: source e2e/setup/env.sh first");
        return;
    };
    let made = std::env::var("OUT_DIR").unwrap_or_else(|_| ".".to_owned());
    if let Err(error) = kernels_source(&made) {
        println!("cargo:warning=src/kernels.cu cannot be made a header in {made}: {error}");
        return;
    }
    let cuda = std::env::var("GRPO_CUDA").ok().filter(|headers| !headers.is_empty());
    // Files of one group are compiled side by side.
    let build = |files: &[&str], name: &str, optimised: u32| {
        let mut build = cc::Build::new();
        if let Some(headers) = &cuda {
            build
                .define("GRPO_CUDA", None)
                .define("USE_C10D_NCCL", None)
                .include(headers)
                .include(format!("{headers}/cccl"));
        }
        build
            .cpp(true)
            .std("c++17")
            .files(files.iter().map(|file| format!("src/{file}.cc")))
            .include(&made)
            .include(format!("{torch}/include"))
            .include(format!("{torch}/include/torch/csrc/api/include"))
            .define("USE_C10D_GLOO", None)
            .define("USE_DISTRIBUTED", None)
            .define("_GLIBCXX_USE_CXX11_ABI", "1")
            // libtorch's `parallel_for` is this pragma; without it the loops run on one thread.
            .flag("-fopenmp")
            .warnings(false)
            .opt_level(optimised)
            .compile(name);
    };
    // These files contain loops over values. The linker resolves their symbols from the next group.
    build(&["attention", "fused", "dropout", "memory"], "grpo_native_loops", 3);
    build(
        &[
            "collectives",
            "linear",
            "device",
            "experts",
            "routing",
            "flash",
            "head",
            "kernels",
            "profiler",
            "recorder",
        ],
        "grpo_native",
        1,
    );
    println!("cargo:rustc-link-search=native={torch}/lib");
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    if cuda.is_some() {
        // Symbols of both are used, so both are loaded; the first brings CUDA's operations.
        println!("cargo:rustc-link-lib=dylib=torch_cuda");
        println!("cargo:rustc-link-lib=dylib=c10_cuda");
    }
    // libtorch's own, by its soname.
    println!("cargo:rustc-link-lib=dylib=gomp");
}

/// kernels.cu as text in a header: it is compiled at run time, on the machine with the GPU.
fn kernels_source(folder: &str) -> std::io::Result<()> {
    let source = std::fs::read_to_string("src/kernels.cu")?;
    let header = format!("const char KERNELS_SOURCE[] = R\"cuda({source})cuda\";\n");
    std::fs::write(format!("{folder}/kernels_source.h"), header)
}
