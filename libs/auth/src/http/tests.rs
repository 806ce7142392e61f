use super::*;

fn headers(name: &'static str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_str(value).unwrap());
    headers
}

#[test]
fn a_token_is_read_from_each_header_that_a_client_can_send() {
    let found = |name, value: &str| token(&headers(name, value));
    assert_eq!(found("authorization", "Bearer abc").as_deref(), Some("abc"));
    assert_eq!(found("authorization", "bearer  abc ").as_deref(), Some("abc"));
    let basic = format!("Basic {}", STANDARD.encode("token:a.b.c"));
    assert_eq!(found("authorization", &basic).as_deref(), Some("a.b.c"));
    assert_eq!(found(TOKEN_HEADER, "abc").as_deref(), Some("abc"));
    for wrong in ["abc", "Digest abc", "Basic !", "Basic YWJj"] {
        assert_eq!(found("authorization", wrong), None, "{wrong}");
    }
}

#[test]
fn a_refusal_says_which_kind_it_is() {
    let status = |refusal: &Refusal| refused(refusal).status().as_u16();
    assert_eq!(status(&Refusal::NoKeys), 503);
    assert_eq!(status(&Refusal::Expired), 401);
    let account = crate::ServiceAccount::new("team", "x");
    let allowed = String::new();
    assert_eq!(status(&Refusal::NotAllowed { account, allowed }), 403);
    assert_eq!(refused(&Refusal::Expired).headers()[header::WWW_AUTHENTICATE], "Bearer");
}
