use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::signature::{KeyPair as _, RsaKeyPair, RsaPublicKeyComponents};
use serde_json::{Value, json};

use super::*;
use crate::local_issuer::LocalIssuer;

const TRAINER: Service = Service::Trainer;

fn driver() -> ServiceAccount {
    ServiceAccount::new("team", "demo-driver")
}

fn verifier(issuer: &LocalIssuer) -> Verifier {
    let allowed = vec![driver().into()];
    Verifier::new(TRAINER, allowed, KeyStore::of(issuer.keys()))
}

/// Claims of a valid token, modified by `change`.
fn claims(change: impl FnOnce(&mut Value)) -> Value {
    let mut claims = json!({
        "iss": LocalIssuer::ISSUER, "aud": [TRAINER.audience()], "sub": driver().subject(),
        "nbf": now() - 1, "exp": now() + 600,
        "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": "demo-driver"}},
    });
    change(&mut claims);
    claims
}

#[test]
fn a_token_of_an_allowed_account_for_this_service_is_let_in_each_time() {
    let issuer = LocalIssuer::new().unwrap();
    let (verifier, token) = (verifier(&issuer), issuer.token(&driver(), TRAINER).unwrap());
    assert_eq!(verifier.verify(&token), Ok(driver()));
    // This time from the cache.
    assert_eq!(verifier.verify(&token), Ok(driver()));
}

#[test]
fn what_is_wrong_with_a_token_is_told_from_every_other_fault() {
    let issuer = LocalIssuer::new().unwrap();
    let verifier = verifier(&issuer);
    let verify = |claims: Value| verifier.verify(&issuer.sign(&claims).unwrap());
    assert_eq!(verify(claims(|_| {})), Ok(driver()));
    let audience = TRAINER.audience();
    assert_eq!(
        verify(claims(|c| c["aud"] = json!([Service::Gateway.audience()]))),
        Err(Refusal::WrongAudience { audience })
    );
    assert_eq!(verify(claims(|c| c["exp"] = json!(now() - 60))), Err(Refusal::Expired));
    assert_eq!(verify(claims(|c| c["nbf"] = json!(now() + 600))), Err(Refusal::Early));
    assert!(matches!(
        verify(claims(|c| c["iss"] = json!("https://elsewhere"))),
        Err(Refusal::WrongIssuer { .. })
    ));
    for missing in ["exp", "iss", "aud", "sub", "kubernetes.io"] {
        let refused = verify(claims(|c| drop(c.as_object_mut().unwrap().remove(missing))));
        assert!(
            matches!(refused, Err(Refusal::Malformed { .. })),
            "{missing}: {refused:?}"
        );
    }
    let other = verify(claims(|c| c["kubernetes.io"]["serviceaccount"]["name"] = json!("x")));
    assert!(matches!(other, Err(Refusal::Malformed { .. })), "{other:?}");
}

#[test]
fn a_token_of_another_run_or_namespace_is_refused_by_its_name() {
    let issuer = LocalIssuer::new().unwrap();
    let verifier = verifier(&issuer);
    for account in [
        ServiceAccount::new("team", "other-driver"),
        ServiceAccount::new("else", "demo-driver"),
    ] {
        let refused = verifier.verify(&issuer.token(&account, TRAINER).unwrap()).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains(&account.to_string()) && message.contains("team/demo-driver"),
            "{message}"
        );
    }
}

#[test]
fn a_valid_token_of_a_forbidden_account_takes_no_place_in_the_cache() {
    let issuer = LocalIssuer::new().unwrap();
    let verifier = verifier(&issuer);
    let forbidden = issuer.token(&ServiceAccount::new("else", "default"), TRAINER).unwrap();
    assert!(matches!(verifier.verify(&forbidden), Err(Refusal::NotAllowed { .. })));
    assert!(verifier.remembered.lock().unwrap().is_empty());
    let allowed = issuer.token(&driver(), TRAINER).unwrap();
    assert_eq!(verifier.verify(&allowed), Ok(driver()));
    assert_eq!(verifier.remembered.lock().unwrap().len(), 1);
}

#[test]
fn a_forged_token_is_refused() {
    let (issuer, forger) = (LocalIssuer::new().unwrap(), LocalIssuer::new().unwrap());
    let verifier = verifier(&issuer);
    // The same key id, another key.
    let forged = forger.token(&driver(), TRAINER).unwrap();
    assert_eq!(verifier.verify(&forged), Err(Refusal::BadSignature));
    let good = issuer.token(&driver(), TRAINER).unwrap();
    let (head, _) = good.rsplit_once('.').unwrap();
    assert!(matches!(
        verifier.verify(&format!("{head}.")),
        Err(Refusal::BadSignature | Refusal::Malformed { .. })
    ));
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"local"}"#);
    let payload = good.split('.').nth(1).unwrap();
    for text in [
        format!("{header}.{payload}."),
        String::new(),
        "a.b.c".to_owned(),
        "x".repeat(MAX_TOKEN_BYTES + 1),
    ] {
        let refused = verifier.verify(&text);
        assert!(matches!(refused, Err(Refusal::Malformed { .. })), "{refused:?}");
    }
}

#[test]
fn a_token_that_was_remembered_is_forgotten_with_its_keys_and_its_time() {
    let issuer = LocalIssuer::new().unwrap();
    let verifier = verifier(&issuer);
    let short = now() - LEEWAY + 1;
    let token = issuer.sign(&claims(|c| c["exp"] = json!(short))).unwrap();
    assert_eq!(verifier.verify(&token), Ok(driver()));
    let digest: [u8; 32] = Sha256::digest(&token).into();
    verifier.remembered.lock().unwrap().get_mut(&digest).unwrap().expires = now() - 3600;
    assert_eq!(verifier.verify(&token), Err(Refusal::Expired));

    let token = issuer.token(&driver(), TRAINER).unwrap();
    assert_eq!(verifier.verify(&token), Ok(driver()));
    verifier.keys.set(LocalIssuer::new().unwrap().keys());
    assert_eq!(verifier.verify(&token), Err(Refusal::BadSignature));
}

#[test]
fn without_keys_no_token_is_believed_and_the_caller_is_to_ask_again() {
    let issuer = LocalIssuer::new().unwrap();
    let verifier = Verifier::new(TRAINER, vec![driver().into()], KeyStore::default());
    let token = issuer.token(&driver(), TRAINER).unwrap();
    assert_eq!(verifier.verify(&token), Err(Refusal::NoKeys));
}

#[test]
fn rs256_is_checked_as_clusters_sign_it() {
    let private = include_bytes!("test-key.der");
    let pair = RsaKeyPair::from_der(private).unwrap();
    let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
    let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let key = json!({
        "use": "sig", "kty": "RSA", "kid": "cluster", "alg": "RS256",
        "n": encoded(&public.n), "e": encoded(&public.e),
    });
    let broken = json!({"kty": "new", "kid": "y"});
    let keys = IssuerKeys::new(LocalIssuer::ISSUER, &[broken, key]);
    let verifier = Verifier::new(TRAINER, vec![driver().into()], KeyStore::of(keys));
    let signed = |algorithm: Algorithm, key: &EncodingKey| {
        let mut header = Header::new(algorithm);
        header.kid = Some("cluster".to_owned());
        encode(&header, &claims(|_| {}), key)
    };
    let token = signed(Algorithm::RS256, &EncodingKey::from_rsa_der(private)).unwrap();
    assert_eq!(verifier.verify(&token), Ok(driver()));
    let mut wrong = token.clone().into_bytes();
    let middle = token.rfind('.').unwrap() + 20;
    wrong[middle] = if wrong[middle] == b'A' { b'B' } else { b'A' };
    assert_eq!(
        verifier.verify(&String::from_utf8(wrong).unwrap()),
        Err(Refusal::BadSignature)
    );
    // The cluster's public key, used as the secret of another algorithm.
    let other = LocalIssuer::new().unwrap().token(&driver(), TRAINER).unwrap();
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"cluster"}"#);
    let (_, rest) = other.split_once('.').unwrap();
    assert!(matches!(
        verifier.verify(&format!("{header}.{rest}")),
        Err(Refusal::Malformed { .. })
    ));
}

#[test]
fn an_expired_token_is_refused_though_its_time_is_within_an_hour() {
    let issuer = LocalIssuer::new().unwrap();
    let past = SystemTime::now() - Duration::from_secs(30);
    let token = issuer.token_until(&driver(), TRAINER.audience(), past).unwrap();
    assert_eq!(verifier(&issuer).verify(&token), Err(Refusal::Expired));
}
