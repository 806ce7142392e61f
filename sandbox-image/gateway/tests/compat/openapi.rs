//! The API description matches the served API.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{World, answer};

type Routes = BTreeMap<String, BTreeSet<String>>;

/// Paths and methods of the description.
fn described(document: &Value) -> Routes {
    let paths = document["paths"].as_object().unwrap();
    let methods = |path: &Value| path.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
    paths
        .iter()
        .map(|(path, value)| (path.clone(), methods(value)))
        .collect()
}

/// Paths of the router itself, which only its debug text shows.
fn routed(world: &World) -> BTreeSet<String> {
    let text = format!("{:?}", grpo_gateway::http::router(world.gateway.core.clone()));
    let quoted = text.split('"').skip(1).step_by(2);
    quoted
        .filter(|part| part.starts_with('/') && !part.starts_with("/compat/"))
        // The library's own catch-all routes.
        .filter(|part| *part != "/" && !part.starts_with("/{*__private"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_and_method_is_described_and_there_are_no_others() {
    let world = World::small().await;
    let document = world.get("/openapi.json").await;
    let described = described(&document);
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), routed(&world));
    for (path, methods) in described {
        let url = format!("{}{}", world.url, path.replace("{id}", "none"));
        // No route has this method, so the response lists the allowed ones.
        let refused = world.http.request(Method::TRACE, &url).send().await.unwrap();
        assert_eq!(refused.status(), 405, "{path}");
        let allowed = refused.headers()["allow"].to_str().unwrap().to_owned();
        let allowed: BTreeSet<String> = allowed.split(',').map(|method| method.trim().to_owned()).collect();
        let mut wanted = methods.clone();
        if methods.contains("GET") {
            wanted.insert("HEAD".into());
        }
        assert_eq!(allowed, wanted, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_the_library_are_errors_like_any_other() {
    let world = World::small().await;
    let url = |path: &str| format!("{}{path}", world.url);
    for (request, status, code) in [
        (world.http.get(url("/v1/nothing")), 404, "BadRequest"),
        (world.http.put(url("/v1/leases")), 405, "BadRequest"),
        (world.http.get(url("/v1/leases/%ff")), 400, "BadRequest"),
        (world.http.post(url("/v1/leases")).body("{}"), 400, "BadRequest"),
    ] {
        let (told, body) = answer(request).await;
        assert_eq!(
            (told.as_u16(), &body["code"], &body["fault"]),
            (status, &json!(code), &json!("Client")),
            "{body}"
        );
    }
}
