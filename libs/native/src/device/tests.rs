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

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
}

#[test]
fn freed_tensors_leave_the_process_when_its_memory_is_returned() {
    const COUNT: usize = 4096;
    // Each is too small for a mapping of its own, which would leave with the tensor.
    let all: Vec<Tensor> = (0..COUNT)
        .map(|_| Tensor::ones([16i64 << 10], (tch::Kind::Float, Device::Cpu)))
        .collect();
    // Some stay, so that the freed ones do not end the heap: the allocator would give its end back by itself.
    let kept: Vec<Tensor> = all.iter().skip(15).step_by(16).map(Tensor::shallow_clone).collect();
    drop(all);
    let before = resident();
    return_memory(Device::Cpu).unwrap();
    let after = resident();
    let freed = ((COUNT - kept.len()) * (64 << 10)) as u64;
    assert!(
        after + freed / 2 < before,
        "{before} before, {after} after, {freed} freed"
    );
    assert!(kept.iter().all(|tensor| tensor.double_value(&[1]) == 1.0));
}

#[test]
fn a_gpu_that_is_not_there_has_no_memory_to_return() {
    return_memory(Device::Cuda(1 << 10)).unwrap_err();
}
