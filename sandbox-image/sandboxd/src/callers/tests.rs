use super::*;

fn served(peer: &str, own: &str) -> bool {
    Callers::OtherHosts.include(peer.parse().unwrap(), own.parse().unwrap())
}

#[test]
fn a_caller_from_an_address_of_this_host_is_refused_however_it_is_written() {
    for (peer, own) in [
        ("127.0.0.1:4000", "127.0.0.1"),
        ("127.8.9.10:4000", "192.0.2.7"),
        ("[::1]:4000", "::1"),
        ("[::ffff:127.0.0.1]:4000", "::ffff:192.0.2.7"),
        ("[::ffff:192.0.2.7]:4000", "192.0.2.7"),
        ("192.0.2.7:4000", "::ffff:192.0.2.7"),
    ] {
        assert!(!served(peer, own), "{peer} to {own}");
    }
}

#[test]
fn an_address_of_another_interface_is_of_this_host_too() {
    assert!(can_be_bound("[::ffff:127.0.0.1]:4000".parse().unwrap()));
    assert!(!can_be_bound("192.0.2.1:4000".parse().unwrap()));
}

#[test]
fn a_caller_from_elsewhere_is_served() {
    assert!(served("192.0.2.1:4000", "192.0.2.7"));
    assert!(served("[::ffff:192.0.2.1]:4000", "::ffff:192.0.2.7"));
    assert!(Callers::Anybody.include("127.0.0.1:4000".parse().unwrap(), "127.0.0.1".parse().unwrap()));
}
