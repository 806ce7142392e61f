//! The trainer takes orders only from its run's driver.

use std::time::{Duration, SystemTime};

use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use grpo_records::paths;

use crate::common::process::{Attempt, Run, checksum, driver};

#[test]
fn only_the_runs_own_driver_orders_steps_also_while_the_issuer_is_away() {
    let run = Run::new(1);
    let attempt = Attempt::start(&run, 1, 1);
    std::fs::remove_file(run.root.join("issuer.json")).unwrap();
    let order = serde_json::json!({"batch": paths::batch(1), "sha256": checksum(&run, 1)}).to_string();
    let token = |account: &ServiceAccount, audience: &str, end| run.issuer.token_until(account, audience, end).unwrap();
    let audience = Service::Trainer.audience();
    let (past, later) = (
        SystemTime::now() - Duration::from_secs(60),
        SystemTime::now() + Duration::from_secs(60),
    );
    let cases = [
        (String::new(), 401, "no token"),
        (
            LocalIssuer::new().unwrap().token(&driver(), Service::Trainer).unwrap(),
            401,
            "signature",
        ),
        (token(&driver(), "gateway.grpo.dev", later), 401, "trainer.grpo.dev"),
        (token(&driver(), audience, past), 401, "expired"),
        (
            token(&ServiceAccount::new("default", "other-driver"), audience, later),
            403,
            "default/run-driver",
        ),
    ];
    for (given, wanted, words) in cases {
        for (method, path, body) in [
            ("PUT", "/v1/steps/1", order.as_str()),
            ("GET", "/v1/state", ""),
            ("GET", "/v1/steps/1", ""),
            ("PUT", "/v1/devices", r#"{"attempt": 1}"#),
        ] {
            let (status, answer) = attempt.ask_with(&given, 0, method, path, body).unwrap();
            assert_eq!(status, wanted, "{method} {path}: {answer}");
            assert!(answer.contains(words), "{answer}");
        }
    }
    assert_eq!(attempt.state().step, 0);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(attempt.ask_with("", 0, "GET", path, "").unwrap().0, 200, "{path}");
    }
    assert_eq!(attempt.order(1, "weights/manifest.json", &checksum(&run, 1)).0, 400);
    attempt.step(&run, 1);
}
