mod identity;

use super::*;
use grpo_crds::sources::ObjectStoreSource;

fn source(url: &str, endpoint: Option<&str>) -> ObjectStoreSource {
    ObjectStoreSource {
        url: url.to_owned(),
        endpoint: endpoint.map(str::to_owned),
        region: None,
        credentials_secret_ref: None,
    }
}

fn keys() -> Credentials {
    Credentials::from([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")])
}

#[tokio::test]
async fn a_url_names_a_bucket_and_a_folder_in_it() {
    let at = Some("http://127.0.0.1:1");
    let google = Credentials::from([(
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        r#"{"private_key": "", "private_key_id": "", "client_email": "", "gcs_base_url": "http://127.0.0.1:1", "disable_oauth": true}"#,
    )]);
    let azure = Credentials::from([
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
    ]);
    for (url, endpoint, credentials, prefix) in [
        ("s3://runs", at, &keys(), ""),
        ("s3://runs/", at, &keys(), ""),
        ("s3://runs/team/qwen/", at, &keys(), "team/qwen"),
        ("gs://runs/a", None, &google, "a"),
        ("az://runs/a", None, &azure, "a"),
    ] {
        let opened = open(&source(url, endpoint), credentials).await.unwrap();
        assert_eq!(opened.prefix, prefix, "{url}");
        assert_eq!(opened.parts.is_some(), !url.starts_with("az"), "{url}");
    }
    for url in ["runs/a", "s3://", "file:///etc", "http://bucket/a"] {
        let refused = open(&source(url, at), &keys()).await;
        assert!(matches!(refused, Err(OpenError::Url { .. })), "{url}");
    }
}

#[test]
fn a_secrets_keys_are_the_variables_and_nothing_of_them_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| std::fs::write(folder.path().join(name), value).unwrap();
    write("AWS_ACCESS_KEY_ID", "key\n");
    write("AWS_SECRET_ACCESS_KEY", "topsecret");
    write("README", "not a variable");
    std::fs::create_dir(folder.path().join("..data")).unwrap();
    let credentials = Credentials::mounted(folder.path()).unwrap();
    let wanted = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "topsecret")];
    assert_eq!(credentials, Credentials::from(wanted));
    let shown = format!("{credentials:?}");
    assert!(
        shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("topsecret"),
        "{shown}"
    );
}

#[test]
fn a_secret_that_is_not_there_or_too_long_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Credentials::mounted(&folder.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("does the Secret exist?"), "{missing}");
    std::fs::write(folder.path().join("AWS_TOKEN"), vec![b'a'; 70_000]).unwrap();
    let long = Credentials::mounted(folder.path()).unwrap_err();
    assert!(matches!(long, CredentialsError::Long { .. }));
}
