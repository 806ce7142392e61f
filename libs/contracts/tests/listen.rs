//! Services accept connections on addresses of either family.

use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};

use grpo_contracts::listen::{everywhere, listen};

#[test]
fn a_service_that_listens_everywhere_is_reached_by_ipv4_and_by_ipv6() {
    let listener = listen(everywhere(0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    // On machines without IPv6 in the kernel, services listen on IPv4 only.
    if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_and_no_reason_to_serve_ipv4_alone() {
    let first = listen(everywhere(0)).unwrap();
    let again = listen(everywhere(first.local_addr().unwrap().port()));
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn accepted_connections_send_each_piece_of_an_answer_at_once() {
    let listener = listen(everywhere(0)).unwrap();
    let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port())).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert!(accepted.nodelay().unwrap());
}

#[test]
fn accepted_connections_notice_a_peer_whose_node_is_lost() {
    let listener = listen(everywhere(0)).unwrap();
    let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port())).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let socket = socket2::SockRef::from(&accepted);
    assert!(socket.keepalive().unwrap());
    let noticed = socket.tcp_keepalive_time().unwrap()
        + socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
    assert_eq!(noticed.as_secs(), 60);
}
