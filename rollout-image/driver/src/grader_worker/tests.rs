use super::*;

#[tokio::test]
async fn lines_of_the_worker_are_read_up_to_a_bound() {
    let mut from = BufReader::new(&b"first\nsecond\n12345678"[..]);
    let line = async |from: &mut BufReader<&[u8]>| next_line(from, 8).await;
    assert_eq!(line(&mut from).await.unwrap().as_deref(), Some("first\n"));
    assert_eq!(line(&mut from).await.unwrap().as_deref(), Some("second\n"));
    let error = line(&mut from).await.unwrap_err();
    assert!(error.to_string().contains("more than 8 bytes"), "{error}");
    let mut ended = BufReader::new(&b""[..]);
    assert!(line(&mut ended).await.unwrap().is_none());
}
