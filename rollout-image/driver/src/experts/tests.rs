use super::*;

fn mixture(experts: usize) -> Mixture {
    Mixture {
        experts,
        per_token: 2,
        layers: vec![true, false, true],
    }
}

fn reported(numbers: &[u16]) -> RoutedExperts {
    RoutedExperts::of_numbers(5, numbers.len() / 6, numbers).unwrap()
}

#[test]
fn dense_layers_are_left_out_and_the_width_is_the_models() {
    let two = reported(&[1, 2, 0, 0, 3, 4, 5, 6, 0, 0, 7, 0]);
    assert_eq!(mixture(8).to_keep(&two).unwrap(), [1, 2, 3, 4, 5, 6, 7, 0]);
    let wide = mixture(300).to_keep(&reported(&[1, 2, 0, 0, 3, 299])).unwrap();
    assert_eq!(wide, [1, 0, 2, 0, 3, 0, 43, 1]);
}

#[test]
fn what_cannot_be_of_this_model_is_refused() {
    let of = |numbers: &[u16]| mixture(8).to_keep(&reported(numbers));
    assert!(matches!(
        of(&[1, 2, 0, 0, 3, 8]),
        Err(ReplayFault::Number {
            found: 8,
            token: 5,
            layer: 2,
            ..
        })
    ));
    assert!(matches!(
        of(&[0, 0, 0, 0, 3, 4]),
        Err(ReplayFault::Twice { layer: 0, .. })
    ));
    let of_two_layers = RoutedExperts::of_numbers(0, 1, &[1, 2, 3, 4]).unwrap();
    assert!(matches!(
        mixture(8).to_keep(&of_two_layers),
        Err(ReplayFault::Shape {
            found: 4,
            layers: 3,
            per_token: 2
        })
    ));
}
