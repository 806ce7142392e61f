use super::*;

#[test]
fn numbers_come_back_as_they_went_in_one_byte_or_two() {
    for (numbers, width) in [(vec![0, 255, 7, 127], 1), (vec![0, 256, 7, 511], 2)] {
        let experts = RoutedExperts::of_numbers(3, 2, &numbers).unwrap();
        assert_eq!((experts.from, experts.per_token, experts.width), (3, 2, width));
        let json = serde_json::to_string(&experts).unwrap();
        let back: RoutedExperts = serde_json::from_str(&json).unwrap();
        assert_eq!(back, experts);
        assert_eq!(back.numbers().unwrap(), numbers);
    }
    let none = RoutedExperts::of_numbers(5, 0, &[]).unwrap();
    assert!(none.numbers().unwrap().is_empty());
}

#[test]
fn what_is_shorter_or_longer_than_it_says_is_refused() {
    let experts = RoutedExperts::of_numbers(0, 2, &[1, 2, 3, 4]).unwrap();
    for wrong in [
        RoutedExperts {
            tokens: 3,
            ..experts.clone()
        },
        RoutedExperts {
            per_token: 1,
            ..experts.clone()
        },
        RoutedExperts {
            data: String::new(),
            ..experts.clone()
        },
    ] {
        assert!(matches!(wrong.numbers(), Err(ExpertsFault::Length { .. })), "{wrong:?}");
    }
    assert!(matches!(
        RoutedExperts::of_numbers(0, 3, &[1, 2, 3, 4]),
        Err(ExpertsFault::Length { .. })
    ));
    let wide = RoutedExperts {
        width: 4,
        ..experts.clone()
    };
    assert_eq!(wide.numbers(), Err(ExpertsFault::Width { width: 4 }));
    let garbled = RoutedExperts {
        data: "????".into(),
        tokens: 3,
        per_token: 1,
        ..experts
    };
    assert!(matches!(garbled.numbers(), Err(ExpertsFault::Base64 { .. })));
}

#[test]
fn more_than_is_allowed_is_refused_before_it_is_read() {
    let endless = RoutedExperts {
        from: 0,
        tokens: usize::MAX,
        per_token: 2,
        width: 1,
        data: String::new(),
    };
    assert!(matches!(endless.numbers(), Err(ExpertsFault::TooMany { .. })));
}
