use super::{Peaks, Side, anonymous, container_of, held_by, processes_in};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

#[test]
fn anonymous_pages_in_memory_and_in_swap_count_and_those_of_files_do_not() {
    let status =
        "Name:\tgrpo-engine\nVmRSS:\t    9000 kB\nRssAnon:\t    1000 kB\nRssFile:\t    8000 kB\nVmSwap:\t      24 kB\n";
    assert_eq!(anonymous(status), Some(1024 << 10));
    assert!(held_by(std::process::id()) > 0);
}

#[test]
fn a_process_that_has_ended_holds_nothing() {
    assert_eq!(anonymous("Name:\tgrpo-engine\nState:\tZ (zombie)\n"), None);
    assert_eq!(held_by(u32::MAX), 0);
}

#[test]
fn the_peak_of_both_is_of_one_moment_and_not_the_sum_of_two_peaks() {
    let mut peaks = Peaks::default();
    peaks.see(900, 0);
    assert!(!peaks.are_complete(), "{peaks:?}");
    peaks.see(900, 100);
    peaks.see(50, 400);
    let expected = Peaks {
        trainer: 900,
        engine: 400,
        together: 1000,
    };
    assert_eq!(peaks, expected);
    assert!(peaks.are_complete() && peaks.larger() == 900.0);
}

fn pod(role: &str, containers: &[(&str, Option<&str>)]) -> Pod {
    let status = |(name, id): &(&str, Option<&str>)| -> Value {
        json!({"name": name, "containerID": id, "image": "", "imageID": "", "ready": true, "restartCount": 0})
    };
    let statuses: Vec<Value> = containers.iter().map(status).collect();
    let pod = json!({
        "metadata": {"name": "pod", "labels": {"grpo.dev/role": role}},
        "status": {"containerStatuses": statuses},
    });
    serde_json::from_value(pod).unwrap()
}

#[test]
fn only_what_trains_or_samples_is_measured_once_it_has_begun() {
    let agent = ("agent", Some("containerd://a1"));
    let engine = pod("engine", &[agent, ("engine", Some("containerd://b2"))]);
    assert_eq!(container_of(&engine), Some((Side::Engine, "b2".to_owned())));
    let trainer = pod("trainer", &[("trainer", Some("containerd://c3"))]);
    assert_eq!(container_of(&trainer), Some((Side::Trainer, "c3".to_owned())));
    for other in [
        pod("engine", &[agent, ("engine", None)]),
        pod("engine", &[agent, ("engine", Some("containerd://"))]),
        pod("driver", &[("driver", Some("containerd://d4"))]),
    ] {
        assert_eq!(container_of(&other), None, "{other:?}");
    }
}

#[test]
fn without_a_container_no_process_is_measured() {
    assert!(processes_in(&[]).is_empty());
    assert!(processes_in(&[(Side::Engine, "no such container".to_owned())]).is_empty());
}
