//! Slow callers and callers with excessive claims, over real sockets. Waits run in virtual time.

use super::*;
use crate::bounds::ProcessGuard;
use crate::reaper::Reaper;
use grpo_sandbox_protocol::Signer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Longer than any caller may be kept.
const PATIENCE: Duration = Duration::from_secs(3600);

async fn connected() -> (TcpStream, Signer) {
    let signer = Signer::from_seed(&[7; 32]);
    let executor = Executor::new(Reaper::default(), ProcessGuard::default()).unwrap();
    let sandbox = Sandbox {
        verifier: Verifier::from_base64(&signer.public_key()).unwrap(),
        binding: Binding::default(),
        sessions: Sessions::new(executor.clone()),
        executor,
        relays: Relays::default(),
        room: Room::of_files(2),
    };
    sandbox.binding.bind("l1", 1, 24 * 3600).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::new(sandbox), Callers::Anybody));
    (TcpStream::connect(address).await.unwrap(), signer)
}

/// The head of a file upload with this length and no body.
fn head(signer: &Signer, lease: &str, bytes: usize) -> String {
    signed(signer, "PUT", lease, bytes)
}

fn signed(signer: &Signer, method: &str, lease: &str, bytes: usize) -> String {
    let (target, unix_millis) = ("/files?path=/no/such/file", now());
    let signature = signer.sign(&Signed {
        method,
        target,
        lease,
        epoch: 1,
        unix_millis,
        body: b"",
    });
    format!(
        "{method} {target} HTTP/1.1\r\nhost: sandbox\r\ncontent-length: {bytes}\r\n\
         {LEASE_HEADER}: {lease}\r\n{EPOCH_HEADER}: 1\r\n{TIME_HEADER}: {unix_millis}\r\n{SIGNATURE_HEADER}: {signature}\r\n\r\n"
    )
}

/// The first line of the response to a signed request for a missing file.
async fn asked(stream: &mut TcpStream, signer: &Signer) -> String {
    stream
        .write_all(signed(signer, "GET", "l1", 0).as_bytes())
        .await
        .unwrap();
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..count])
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Everything that arrives until the connection is closed.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_finish_its_head_is_cut_off() {
    let (mut stream, _) = connected().await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: sand").await.unwrap();
    assert!(!until_closed(stream).await.contains("200"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_not_waited_for_longer_than_its_time() {
    let (mut stream, signer) = connected().await;
    stream.write_all(head(&signer, "l1", 1000).as_bytes()).await.unwrap();
    let answer = until_closed(stream).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("did not arrive"), "{answer}");
}

#[tokio::test]
async fn what_its_head_gives_away_is_refused_before_its_body_is_read() {
    for (lease, bytes, status) in [("l2", 1000, "409"), ("l1", MAX_FILE_BYTES + 1, "413")] {
        let (mut stream, signer) = connected().await;
        stream.write_all(head(&signer, lease, bytes).as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(std::str::from_utf8(&answer).unwrap(), format!("HTTP/1.1 {status}"));
    }
    let (mut stream, _) = connected().await;
    let unsigned = b"POST /exec HTTP/1.1\r\nhost: sandbox\r\ncontent-length: 1000\r\n\r\n";
    stream.write_all(unsigned).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn whoever_holds_connections_and_never_calls_as_the_gateway_keeps_nobody_out() {
    let (mut before, signer) = connected().await;
    assert_eq!(asked(&mut before, &signer).await, "HTTP/1.1 404 Not Found");
    let address = before.peer_addr().unwrap();
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    let mut after = TcpStream::connect(address).await.unwrap();
    for connection in [&mut after, &mut before] {
        assert_eq!(asked(connection, &signer).await, "HTTP/1.1 404 Not Found");
    }
    assert_eq!(until_closed(held.remove(0)).await, "");
}
