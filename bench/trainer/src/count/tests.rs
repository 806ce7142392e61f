use grpo_memory::{Facts, ParallelDims, StepWork};
use grpo_trainer::memory::geometry;

use super::*;
use crate::published::ONE_ROW;

const TOKENS: usize = 16_384;

/// The passes of a block of every geometry and case.
struct Found {
    model: Model,
    case: &'static str,
    config: Config,
    work: StepWork,
    passes: Passes<Vec<Operation>>,
}

fn blocks() -> Vec<Found> {
    let models = Model::value_variants().iter();
    let all = models.flat_map(|model| cases(TOKENS).map(|(case, rows)| (*model, case, rows)));
    all.map(|(model, case, rows)| {
        let config = model.trained(None, TOKENS).unwrap();
        let work = pack(&rows, TOKENS, 1, &Cost::of(&config)).work();
        let block = FirstBlock::of(config.clone(), &rows, TOKENS, &Nowhere).unwrap();
        Found {
            model,
            case,
            config,
            work: StepWork {
                tokens: work.tokens,
                pairs: work.pairs,
                trained: work.entries,
            },
            passes: block.operations().unwrap(),
        }
    })
    .collect()
}

/// Launches of a block: `[forward, backward]`. They grow only by a change of the code, which then changes this table.
#[test]
fn launches_of_a_block_are_those_of_this_table() {
    for found in blocks() {
        let passes = [&found.passes.forward, &found.passes.backward];
        let got = passes.map(|pass| Counts::of(pass).launches);
        let wanted = match (found.model, found.case) {
            (Model::Full06B, ONE_ROW) => [19, 39],
            (Model::Full06B, _) => [25, 54],
            (Model::LoraMixture, ONE_ROW) => [50, 65],
            (Model::LoraMixture, _) => [56, 80],
            (_, ONE_ROW) => [33, 59],
            _ => [39, 74],
        };
        assert_eq!(got, wanted, "{:?}, {}", found.model, found.case);
    }
}

#[test]
fn the_head_of_16384_trained_tokens_takes_few_launches() {
    for model in Model::value_variants() {
        let config = model.trained(None, TOKENS).unwrap();
        let launches = Counts::of(&head(&config, TOKENS, &Nowhere).unwrap()).launches;
        assert!(launches <= 25, "{model:?}: {launches}");
    }
}

#[test]
fn no_operation_of_a_block_makes_the_host_wait() {
    for found in blocks() {
        let waits = |one: &&Operation| one.name.contains("_local_scalar_dense") || one.name.contains("nonzero");
        let waiting = found.passes.forward.iter().chain(&found.passes.backward).find(waits);
        assert_eq!(waiting, None, "{:?}, {}", found.model, found.case);
    }
}

/// `kubectl grpo plan` estimates a step's time by formulas. They must count what the code does; for samples of one
/// prompt they leave out that attention's parts are merged.
#[test]
fn operations_and_bytes_of_a_block_are_those_of_the_estimate() {
    for found in blocks() {
        let facts = Facts::of(geometry(&found.config), ParallelDims::DATA_PARALLEL, 1);
        let formulas = facts.block_work(0, &found.work);
        for (pass, formula, operations) in [
            ("forward", formulas[0], &found.passes.forward),
            ("backward", formulas[1], &found.passes.backward),
        ] {
            let counts = Counts::of(operations);
            let what = format!("{:?}, {}, {pass}", found.model, found.case);
            let flops = (formula.linear + formula.attention) / counts.flops;
            assert!((0.99..1.01).contains(&flops), "{what}: {flops} of the operations");
            let moved = formula.moved / counts.moved;
            println!("{what}: {flops:.4} of the operations, {moved:.3} of the bytes");
            let least = if found.case == ONE_ROW { 0.95 } else { 0.75 };
            assert!((least..1.05).contains(&moved), "{what}: {moved} of the bytes");
        }
    }
}
