//! Builds the C++ shim against the libtorch that `LIBTORCH` names (the folder that holds `include` and `lib`).

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=src/collectives.cc");
    let Ok(torch) = std::env::var("LIBTORCH") else {
        println!("cargo:warning=LIBTORCH is not set: source e2e/setup/env.sh first");
        return;
    };
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("src/collectives.cc")
        .include(format!("{torch}/include"))
        .include(format!("{torch}/include/torch/csrc/api/include"))
        .define("USE_C10D_GLOO", None)
        .define("USE_DISTRIBUTED", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .warnings(false)
        .opt_level(1)
        .compile("grpo_native");
    println!("cargo:rustc-link-search=native={torch}/lib");
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
}
