use super::*;

fn node(gpus: u32) -> Node {
    Node {
        gpus,
        special: false,
        zone: 'a',
    }
}

fn run(trainers: u32, gpus: u32) -> Run {
    Run {
        trainer: Pods { count: trainers, gpus },
        engines: Pods { count: 1, gpus: 1 },
        tolerates: false,
        zone: None,
    }
}

#[test]
fn what_fits_is_found_although_the_first_try_does_not() {
    let scenario = Scenario {
        nodes: vec![node(4), node(2), node(2)],
        runs: vec![run(3, 2)],
    };
    assert!(
        scenario.fits(&[4, 2, 2], &[&run(3, 2)]),
        "the engine goes beside one trainer"
    );
    assert!(!scenario.fits(&[3, 2, 1], &[&run(3, 2)]));
    assert!(!scenario.fits(&[4, 2, 2], &[&run(2, 4)]));
}

#[test]
fn taints_and_zones_keep_runs_away() {
    let special = Node {
        special: true,
        ..node(8)
    };
    let scenario = Scenario {
        nodes: vec![special],
        runs: Vec::new(),
    };
    let tolerant = Run {
        tolerates: true,
        ..run(1, 4)
    };
    assert!(!scenario.fits(&[8], &[&run(1, 4)]));
    assert!(scenario.fits(&[8], &[&tolerant]));
    let elsewhere = Run {
        zone: Some('b'),
        ..tolerant
    };
    assert!(!scenario.fits(&[8], &[&elsewhere]));
}

#[test]
fn every_scenario_is_a_contest_and_no_two_batches_are_alike() {
    let scenarios: Vec<Scenario> = (0..200).map(Scenario::of).collect();
    assert!(scenarios.iter().all(Scenario::is_a_contest));
    assert_eq!(Scenario::of(7), Scenario::of(7));
    let different = scenarios.iter().filter(|scenario| **scenario != scenarios[0]).count();
    assert!(different >= 198, "{different}");
    let mentions = |what: &dyn Fn(&Scenario) -> bool| scenarios.iter().filter(|scenario| what(scenario)).count();
    assert!(mentions(&|s| s.nodes.iter().any(|node| node.special)) > 10);
    assert!(mentions(&|s| s.runs.iter().any(|run| run.zone.is_some())) > 10);
    assert!(mentions(&|s| s.runs.len() == 3) > 20);
}
