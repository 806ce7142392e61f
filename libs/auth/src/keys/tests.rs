use super::*;
use crate::local_issuer::LocalIssuer;

#[tokio::test]
async fn a_file_of_keys_is_read_and_a_wrong_one_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.json");
    std::fs::write(&path, LocalIssuer::new().unwrap().file()).unwrap();
    let keys = KeySource::File(path.clone()).fetch().await.unwrap();
    assert_eq!((keys.issuer.as_str(), keys.len()), (LocalIssuer::ISSUER, 1));
    std::fs::write(&path, "{}").unwrap();
    let message = KeySource::File(path).fetch().await.err().unwrap().to_string();
    assert!(message.contains("issuer.json is no set of keys"), "{message}");
    let message = KeySource::File("/missing".into())
        .fetch()
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(message.contains("--issuer-file"), "{message}");
}

#[test]
fn keys_of_other_algorithms_are_left_out() {
    let key = |change: &[(&str, &str)]| {
        let mut key = LocalIssuer::new().unwrap().public_key();
        for (name, value) in change {
            key[*name] = (*value).into();
        }
        IssuerKeys::new("i", &[key]).len()
    };
    assert_eq!(key(&[]), 1);
    assert_eq!(key(&[("crv", "P-384")]), 0);
    assert_eq!(key(&[("alg", "ES384")]), 0);
    assert_eq!(key(&[("kty", "oct"), ("k", "c2VjcmV0")]), 0);
}
