use super::*;

fn asked_again(code: ErrorCode, fault: Whose) -> bool {
    let status = StatusCode::from_u16(code.status()).unwrap();
    may_pass(status, &ErrorBody::new(code, fault, "why"))
}

#[test]
fn what_the_workload_brought_about_is_not_waited_for() {
    for code in [ErrorCode::Unavailable, ErrorCode::Internal, ErrorCode::BadSignature] {
        assert!(!asked_again(code, Whose::Workload), "{code:?}");
        assert!(asked_again(code, Whose::Infrastructure), "{code:?}");
    }
    assert!(!asked_again(ErrorCode::NoSuchFile, Whose::Workload));
}

#[test]
fn what_the_infrastructure_may_get_over_is_waited_for() {
    use ErrorCode::*;
    for code in [EgressUnproven, QueueDeadline, SandboxUnreachable, BadSignature] {
        assert!(asked_again(code, Whose::Infrastructure), "{code:?}");
    }
    // Another lease's sandbox does not become this one's.
    for code in [WrongLease, SandboxLost, ImageUnavailable] {
        assert!(!asked_again(code, Whose::Infrastructure), "{code:?}");
    }
}

#[test]
fn a_refusal_for_the_workloads_fault_is_its_loss_and_no_void() {
    let refused = |fault| SandboxError::Refused {
        doing: "running a command".into(),
        message: "32 commands run already".into(),
        fault,
    };
    assert!(refused(Whose::Workload).is_workloads_fault());
    assert!(!refused(Whose::Infrastructure).is_workloads_fault());
    assert!(!refused(Whose::Client).is_workloads_fault());
}
