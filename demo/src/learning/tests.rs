use super::*;

fn report(gain: f64, low: f64) -> BTreeMap<String, SetReport> {
    let set = SetReport {
        gain: Some(Estimate {
            value: gain,
            low,
            high: gain + 0.1,
        }),
        ..SetReport::default()
    };
    BTreeMap::from([("train".into(), set.clone()), ("heldout".into(), set)])
}

fn measured(gain: f64, low: f64) -> Measured {
    Measured {
        seeds: BTreeMap::from([(0, report(gain, low)), (1, report(gain, low))]),
        shuffled: Some(report(0.0, -0.05)),
        frozen: Some((0, 384)),
    }
}

#[test]
fn learning_on_every_seed_with_sound_controls_meets_the_bars() {
    assert!(measured(0.25, 0.1).meets_the_bars());
}

#[test]
fn one_interval_with_zero_in_it_does_not() {
    let mut one = measured(0.25, 0.1);
    one.seeds.insert(2, report(0.25, -0.01));
    assert!(!one.meets_the_bars());
}

#[test]
fn a_control_that_learns_or_moves_does_not() {
    let mut shuffled = measured(0.25, 0.1);
    shuffled.shuffled = Some(report(0.2, 0.05));
    assert!(!shuffled.meets_the_bars());
    let mut frozen = measured(0.25, 0.1);
    frozen.frozen = Some((1, 384));
    assert!(!frozen.meets_the_bars());
}
