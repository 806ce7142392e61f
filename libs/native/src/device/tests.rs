use super::*;

#[test]
fn a_process_that_computes_deterministically_has_told_libtorch_and_cublas() {
    compute_deterministically(true);
    assert!(computes_deterministically());
    compute_deterministically(false);
    assert!(!computes_deterministically());
    // Before CUDA starts: the shim sets it at load time.
    let workspace = std::env::var("CUBLAS_WORKSPACE_CONFIG").unwrap();
    assert!([":4096:8", ":16:8"].contains(&workspace.as_str()), "{workspace}");
}
