use super::*;

const ASKED: Asked = Asked { from: 2, tokens: 2 };

/// `numpy.save` of `[[[1, 2], [3, 4]], [[5, 6], [7, 200]]]`, unsigned 8 bits, as vLLM 0.32's `numpy2base64` returns
/// it.
const BY_NUMPY: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoBAgMEBQYHyA==";
/// `BY_NUMPY` in 16 bits, with 300 instead of 200.
const BY_NUMPY_WIDE: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnPHUyJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoBAAIAAwAEAAUABgAHACwB";

#[test]
fn what_numpy_wrote_is_read_in_8_and_in_16_bits() {
    let experts = ASKED.of_vllm(Some(BY_NUMPY)).unwrap();
    assert_eq!(
        (experts.from, experts.tokens, experts.per_token, experts.width),
        (2, 2, 4, 1)
    );
    assert_eq!(experts.numbers().unwrap(), [1, 2, 3, 4, 5, 6, 7, 200]);
    let wide = ASKED.of_vllm(Some(BY_NUMPY_WIDE)).unwrap();
    assert_eq!(wide.numbers().unwrap(), [1, 2, 3, 4, 5, 6, 7, 300]);
}

#[test]
fn sglangs_numbers_are_shared_out_between_the_tokens_there_must_be() {
    let bytes: Vec<u8> = [1i32, 2, 3, 300]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let experts = ASKED.of_sglang(Some(&STANDARD.encode(&bytes))).unwrap();
    assert_eq!((experts.per_token, experts.width), (2, 2));
    assert_eq!(experts.numbers().unwrap(), [1, 2, 3, 300]);
    let three = Asked { tokens: 3, ..ASKED };
    assert_eq!(
        three.of_sglang(Some(&STANDARD.encode(&bytes))).unwrap_err().code,
        ErrorCode::EngineMisbehaved
    );
    let negative = STANDARD.encode((-1i32).to_le_bytes());
    assert_eq!(
        ASKED.of_sglang(Some(&negative)).unwrap_err().code,
        ErrorCode::EngineMisbehaved
    );
}

#[test]
fn of_no_tokens_no_experts_are_missed() {
    let nothing = Asked { from: 9, tokens: 0 };
    assert_eq!(nothing.of_vllm(None).unwrap().tokens, 0);
    assert_eq!(nothing.of_sglang(None).unwrap().tokens, 0);
}

#[test]
fn an_engine_that_returns_none_is_told_from_one_that_returns_nonsense() {
    for missing in [ASKED.of_vllm(None), ASKED.of_sglang(None)] {
        let error = missing.unwrap_err();
        assert_eq!(error.code, ErrorCode::ExpertsNotReported);
        assert!(error.message.contains("--enable-return-routed-experts"));
    }
    let cut = STANDARD.decode(BY_NUMPY).unwrap();
    for nonsense in [
        "?".to_owned(),
        STANDARD.encode("no array"),
        STANDARD.encode(&cut[..cut.len() - 1]),
    ] {
        assert_eq!(
            ASKED.of_vllm(Some(&nonsense)).unwrap_err().code,
            ErrorCode::EngineMisbehaved
        );
    }
    let of_others = Asked { tokens: 3, ..ASKED };
    assert!(
        of_others
            .of_vllm(Some(BY_NUMPY))
            .unwrap_err()
            .message
            .contains("of 2 tokens, 3")
    );
}
