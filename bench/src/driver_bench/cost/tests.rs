use super::*;

#[test]
fn the_counters_of_a_process_are_found_behind_any_name() {
    let rest = "S 1 2 3 0 -1 4194560 310 11 12 13 1250 75 0 0 20 0 9 0 100 1 1";
    let counters = ProcessCounters {
        faults: 310.0,
        user: 12.5,
        system: 0.75,
    };
    for name in ["grpo-driver", "a b", "a) S 9 (b"] {
        assert_eq!(
            ProcessCounters::parse(&format!("77 ({name}) {rest}\n")),
            Some(counters),
            "{name}"
        );
    }
    assert_eq!(ProcessCounters::parse("77 (a) S 1 2"), None);
}

#[test]
fn stolen_time_is_that_of_all_processors_together() {
    let stat = "cpu  1 2 3 4 5 6 7 850 9 10\ncpu0 1 2 3 4 5 6 7 400 9 10\n";
    assert_eq!(stolen(stat), Some(8.5));
    assert_eq!(stolen("cpu0 1 2 3 4 5 6 7 400 9 10\n"), None);
}

#[test]
fn an_iteration_costs_the_difference_of_two_readings_divided_by_their_iterations() {
    let at = Instant::now();
    let first = Reading {
        iterations: 100,
        memory: 1.0,
        at,
        driver: ProcessCounters {
            faults: 10.0,
            user: 1.0,
            system: 2.0,
        },
        bench: ProcessCounters::default(),
        stolen: 0.5,
    };
    let later = Reading {
        iterations: 110,
        at: at + std::time::Duration::from_secs(5),
        driver: ProcessCounters {
            faults: 60.0,
            user: 2.0,
            system: 4.0,
        },
        bench: ProcessCounters {
            faults: 1.0,
            user: 3.0,
            system: 2.0,
        },
        stolen: 0.5,
        ..first
    };
    let cost = first.until(&later);
    assert!((cost.processor() - 0.3).abs() < 1e-9, "{cost:?}");
    assert_eq!(
        cost.to_string(),
        "500 ms; driver 100 ms user, 200 ms system, 5 page faults; simulation 500 ms; stolen 0 ms"
    );
}
