use super::*;

fn list(accounts: &[&str]) -> Vec<AllowedAccount> {
    accounts.iter().map(|account| account.parse().unwrap()).collect()
}

fn grants() -> Grants {
    Grants {
        everything: list(&["team/*-driver"]),
        chunks: list(&["team/demo-engines"]),
        status: list(&["grpo-system/operator"]),
        sampling: list(&["eval/notebook"]),
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
        ("grpo-system/operator", "/agent/v1/status", Entry::Report),
        // A user who replaces an agent of another namespace has a token of this account.
        ("grpo-system/operator", "/agent/v1/weights", Entry::Closed),
        ("grpo-system/operator", chunk, Entry::Closed),
        ("grpo-system/operator", "/v1/completions", Entry::Closed),
        ("grpo-system/operator", "/agent/v1/status/", Entry::Closed),
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
    grants.everything.push("team/mine-driver".parse().unwrap());
    grants.sampling.push("team/mine-driver".parse().unwrap());
    grants.sampling.push("team/demo-engines".parse().unwrap());
    assert_eq!(entry(&grants, "team/mine-driver", "/agent/v1/weights"), Entry::Free);
    assert_eq!(entry(&grants, "team/mine-driver", "/v1/completions"), Entry::Free);
    assert_eq!(
        entry(&grants, "team/demo-engines", "/agent/v1/chunks/v/f/0"),
        Entry::Free
    );
    assert_eq!(entry(&grants, "team/demo-engines", "/v1/completions"), Entry::Client);
    assert_eq!(entry(&grants, "team/demo-engines", "/agent/v1/status"), Entry::Closed);
}

/// A pool that no run owns, as the operator starts its agents.
#[test]
fn a_client_whose_name_fits_the_pattern_of_drivers_or_agents_samples_and_orders_nothing() {
    for clients in [
        &["team/web-driver", "team/search-engines"][..],
        &["team/*-driver", "team/*-engines"],
    ] {
        let grants = Grants {
            everything: list(&["team/*-driver", "team/*-engines"]),
            chunks: Vec::new(),
            status: list(&["grpo-system/operator"]),
            sampling: list(clients),
        };
        for account in ["team/web-driver", "team/search-engines"] {
            for path in [
                "/agent/v1/weights",
                "/agent/v1/prefetch",
                "/agent/v1/sleep",
                "/agent/v1/status",
            ] {
                assert_eq!(
                    entry(&grants, account, path),
                    Entry::Closed,
                    "{clients:?}: {account} {path}"
                );
            }
            assert_eq!(
                entry(&grants, account, "/v1/completions"),
                Entry::Client,
                "{clients:?}: {account}"
            );
        }
        assert_eq!(
            entry(&grants, "grpo-system/operator", "/agent/v1/status"),
            Entry::Report
        );
    }
}

#[test]
fn a_pool_that_no_run_owns_takes_orders_of_drivers_and_agents_of_its_namespace_and_of_no_other_account() {
    let grants = Grants {
        everything: list(&["team/*-driver", "team/*-engines"]),
        chunks: Vec::new(),
        status: list(&["grpo-system/operator"]),
        sampling: list(&["team/notebook"]),
    };
    for (account, wanted) in [
        ("team/demo-driver", Entry::Free),
        ("team/far-engines", Entry::Free),
        ("grpo-system/operator", Entry::Closed),
        ("team/notebook", Entry::Closed),
        ("team/driver", Entry::Closed),
        ("team/demo-driver-2", Entry::Closed),
        ("eval/demo-driver", Entry::Closed),
        ("eval/far-engines", Entry::Closed),
    ] {
        assert_eq!(entry(&grants, account, "/agent/v1/weights"), wanted, "{account}");
    }
}

#[test]
fn a_refusal_says_what_the_account_may_call() {
    let error = grants().refusal(&ServiceAccount::new("eval", "notebook"), "/agent/v1/sleep");
    assert_eq!(error.status(), 403);
    for words in ["eval/notebook", "/agent/v1/sleep", "/v1/chat/completions"] {
        assert!(error.message.contains(words), "{error}");
    }
}
