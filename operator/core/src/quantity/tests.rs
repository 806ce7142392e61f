use super::*;

#[test]
fn every_form_that_kubernetes_knows_is_read() {
    for (text, wanted) in [
        ("0", 0),
        ("2", 2_000),
        ("250m", 250),
        ("1.5", 1_500),
        ("0.0001", 1),
        ("100n", 1),
        ("1u", 1),
        ("8k", 8_000_000),
        ("1Ki", 1_024_000),
        ("1.5Gi", 1_610_612_736_000),
        ("2e3", 2_000_000),
        ("1E3", 1_000_000),
        ("-1", -1_000),
        ("500G", 500_000_000_000_000),
    ] {
        assert_eq!(thousandths(&Quantity(text.into())), Some(wanted), "{text}");
    }
    for text in ["", "abc", "1..2", "Gi", "9999999999999999999E"] {
        assert_eq!(thousandths(&Quantity(text.into())), None, "{text}");
    }
}

#[test]
fn quantities_are_shown_as_people_write_them() {
    assert_eq!(in_words("nvidia.com/gpu", 8_000), "8");
    assert_eq!(in_words("cpu", 250), "250m");
    assert_eq!(in_words("memory", (64i64 << 30) * 1000), "64Gi");
    assert_eq!(in_words("memory", (64i64 << 20) * 1000), "64Mi");
}
