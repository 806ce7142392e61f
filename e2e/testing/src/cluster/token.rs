//! Tokens for services, as users get them: from the API server, for a service account with access.

use grpo_contracts::access::Service;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};

use super::{ClusterError, api};

/// Longer than any test or bench.
const SECONDS: i64 = 12 * 3600;

/// The output of `kubectl create token ACCOUNT --audience …`.
pub async fn service_token(
    client: &Client,
    namespace: &str,
    account: &str,
    service: Service,
) -> Result<String, ClusterError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let wanted = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![service.audience().to_owned()]),
            expiration_seconds: Some(SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let given = accounts
        .create_token_request(account, &PostParams::default(), &wanted)
        .await
        .map_err(api("asking for a token of service account", account))?;
    Ok(given.status.and_then(|status| status.token).unwrap_or_default())
}
