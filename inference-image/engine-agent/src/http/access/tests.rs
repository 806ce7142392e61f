use super::*;

fn grants() -> Grants {
    let list = |account: &str| vec![account.parse().unwrap()];
    Grants {
        everything: list("team/*-driver"),
        chunks: list("team/demo-engines"),
        sampling: list("eval/notebook"),
    }
}

fn entry(grants: &Grants, account: &str, path: &str) -> Entry {
    let (namespace, name) = account.split_once('/').unwrap();
    grants.entry(&ServiceAccount::new(namespace, name), path)
}

#[test]
fn a_path_is_closed_to_an_account_that_has_no_grant_for_it() {
    let grants = grants();
    let chunk = "/agent/v1/chunks/a-v1/model.safetensors/0";
    for (account, path, wanted) in [
        ("team/demo-driver", "/agent/v1/weights", Entry::Free),
        ("team/demo-driver", "/v1/completions", Entry::Free),
        ("team/demo-engines", chunk, Entry::Free),
        ("team/demo-engines", "/v1/completions", Entry::Closed),
        ("eval/notebook", "/v1/models", Entry::Client),
        ("eval/notebook", "/v1/completions", Entry::Client),
        ("eval/notebook", "/v1/chat/completions", Entry::Client),
        ("eval/notebook", chunk, Entry::Closed),
        ("eval/notebook", "/agent/v1/weights", Entry::Closed),
        ("eval/notebook", "/agent/v1/a-route-of-tomorrow", Entry::Closed),
        ("eval/notebook", "/v1/models/", Entry::Closed),
        ("team/notebook", "/v1/models", Entry::Closed),
    ] {
        assert_eq!(entry(&grants, account, path), wanted, "{account} {path}");
    }
}

#[test]
fn an_account_in_two_lists_may_call_what_either_allows() {
    let mut grants = grants();
    grants.sampling.push("team/demo-driver".parse().unwrap());
    grants.sampling.push("team/demo-engines".parse().unwrap());
    assert_eq!(entry(&grants, "team/demo-driver", "/agent/v1/weights"), Entry::Free);
    assert_eq!(entry(&grants, "team/demo-driver", "/v1/completions"), Entry::Free);
    assert_eq!(
        entry(&grants, "team/demo-engines", "/agent/v1/chunks/v/f/0"),
        Entry::Free
    );
    assert_eq!(entry(&grants, "team/demo-engines", "/v1/completions"), Entry::Client);
    assert_eq!(entry(&grants, "team/demo-engines", "/agent/v1/status"), Entry::Closed);
}

#[test]
fn a_refusal_says_what_the_account_may_call() {
    let error = grants().refusal(&ServiceAccount::new("eval", "notebook"), "/agent/v1/sleep");
    assert_eq!(error.status(), 403);
    for words in ["eval/notebook", "/agent/v1/sleep", "/v1/chat/completions"] {
        assert!(error.message.contains(words), "{error}");
    }
}
