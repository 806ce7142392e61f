use super::*;

/// Parameters by the models' cards, in billions.
#[test]
fn published_geometries_have_the_parameters_that_are_published() {
    let models = DENSE.iter().chain(&MIXTURES);
    for (model, published) in models.zip([0.596, 1.72, 4.02, 8.19, 14.77, 32.76, 72.7, 30.53, 235.09]) {
        let found = model.parameters() as f64 / 1e9;
        assert!((found / published - 1.0).abs() < 0.005, "{found} is not {published}");
    }
}

#[test]
fn a_guess_has_the_parameters_that_the_name_says() {
    let dense = |parameters| Size {
        parameters,
        active: parameters,
    };
    for (size, hidden) in [
        (dense(8e9), 4096),
        (dense(7e9), 4096),
        (dense(135e6), 1024),
        (dense(1e12), 8192),
        (
            Size {
                parameters: 30e9,
                active: 3e9,
            },
            2048,
        ),
    ] {
        let geometry = guess(size, None);
        let sum: u64 = geometry.units.iter().sum();
        assert!((sum as f64 / size.parameters - 1.0).abs() < 1e-6, "{size:?}: {sum}");
        assert_eq!(
            (geometry.hidden, geometry.units.len()),
            (hidden, geometry.mlps.len() + 1)
        );
    }
}

#[test]
fn an_adapter_is_beside_the_layers_that_are_named_or_all_and_in_a_mixture_beside_attention() {
    let lora = |targets: &[&str]| Lora {
        rank: 16,
        alpha: None,
        target_modules: targets.iter().map(|&target| target.to_owned()).collect(),
        dropout: 0.1,
    };
    let size = |parameters, active| Size { parameters, active };
    let of = |size, targets: &[&str]| guess(size, Some(&lora(targets))).adapter;
    let adapter = |layers: usize, inputs: u64, outputs: u64| {
        let mut units = vec![16 * (inputs + outputs); layers + 1];
        units[0] = 0;
        Some(AdapterGeometry {
            units,
            inputs,
            outputs,
            drops: true,
        })
    };
    let (h, q, kv, f) = (4096, 4096, 1024, 12_288);
    assert_eq!(
        of(size(8e9, 8e9), &[]),
        adapter(36, 3 * h + q + 2 * h + f, q + 2 * kv + h + 2 * f + h)
    );
    assert_eq!(of(size(8e9, 8e9), &["q_proj"]), adapter(36, h, q));
    let (h, q, kv) = (2048, 4096, 512);
    assert_eq!(of(size(30e9, 3e9), &[]), adapter(48, 3 * h + q, q + 2 * kv + h));
}
