use super::*;

fn request() -> Signed<'static> {
    Signed {
        method: "POST",
        target: "/exec",
        lease: "l1",
        epoch: 3,
        unix_millis: 1_000_000,
        body: b"{}",
    }
}

#[test]
fn a_signed_request_is_believed_and_any_changed_part_of_it_is_not() {
    let signer = Signer::from_seed(&[7; 32]);
    let verifier = Verifier::from_base64(&signer.public_key()).unwrap();
    let signature = signer.sign(&request());
    assert_eq!(verifier.verify(&request(), &signature, 1_000_500), Ok(()));
    for changed in [
        Signed {
            method: "PUT",
            ..request()
        },
        Signed {
            target: "/files?path=/etc/passwd",
            ..request()
        },
        Signed {
            lease: "l2",
            ..request()
        },
        Signed { epoch: 4, ..request() },
        Signed {
            unix_millis: 1_000_001,
            ..request()
        },
        Signed {
            body: b"{ }",
            ..request()
        },
    ] {
        assert_eq!(
            verifier.verify(&changed, &signature, 1_000_500),
            Err(SignatureError::Wrong),
            "{changed:?}"
        );
    }
}

#[test]
fn a_recorded_request_cannot_be_replayed_later() {
    let signer = Signer::from_seed(&[7; 32]);
    let verifier = Verifier::from_base64(&signer.public_key()).unwrap();
    let signature = signer.sign(&request());
    assert_eq!(
        verifier.verify(&request(), &signature, 1_000_000 + MAX_SKEW_MILLIS + 1),
        Err(SignatureError::Skewed {
            millis: -MAX_SKEW_MILLIS - 1
        })
    );
}

#[test]
fn clocks_that_differ_are_named_with_how_far() {
    let skewed = |unix_millis| Verifier::precheck(unix_millis, "", 1_000_000).unwrap_err().to_string();
    assert!(skewed(870_000).starts_with("the gateway's clock is 130 s behind this sandbox's, more than 120 s"));
    assert!(skewed(1_200_000).starts_with("the gateway's clock is 200 s ahead of this sandbox's"));
    assert!(skewed(i64::MIN).contains("behind") && skewed(i64::MAX).contains("ahead"));
}

#[test]
fn a_stale_request_and_one_without_a_signature_are_refused_before_the_body_is_known() {
    let signature = Signer::from_seed(&[7; 32]).sign(&request());
    assert_eq!(Verifier::precheck(1_000_000, &signature, 1_000_500), Ok(()));
    let later = 1_000_000 + MAX_SKEW_MILLIS + 1;
    assert_eq!(
        Verifier::precheck(1_000_000, &signature, later),
        Err(SignatureError::Skewed {
            millis: -MAX_SKEW_MILLIS - 1
        })
    );
    for none in ["", "AAAA", "not base64"] {
        let refused = Verifier::precheck(1_000_000, none, 1_000_500);
        assert_eq!(refused, Err(SignatureError::Malformed), "{none:?}");
    }
}

#[test]
fn another_gateways_key_signs_nothing_here() {
    let verifier = Verifier::from_base64(&Signer::from_seed(&[7; 32]).public_key()).unwrap();
    let signature = Signer::from_seed(&[8; 32]).sign(&request());
    assert_eq!(
        verifier.verify(&request(), &signature, 1_000_000),
        Err(SignatureError::Wrong)
    );
}
