use super::*;

fn file() -> (tempfile::TempDir, TokenFile) {
    let folder = tempfile::tempdir().unwrap();
    let token = TokenFile::in_folder(folder.path(), Service::Driver);
    (folder, token)
}

fn age(token: &TokenFile) {
    token.read.lock().unwrap().at = Instant::now().checked_sub(READ_AGAIN);
}

#[test]
fn a_token_that_the_kubelet_replaced_is_read_again() {
    let (folder, token) = file();
    assert_eq!(token.header(), None);
    let path = folder.path().join("driver.grpo.dev");
    std::fs::write(&path, "one\n").unwrap();
    assert_eq!(token.header().unwrap().to_str().unwrap(), "Bearer one");
    std::fs::write(&path, "two").unwrap();
    assert_eq!(token.header().unwrap().to_str().unwrap(), "Bearer one");
    age(&token);
    assert_eq!(token.header().unwrap().to_str().unwrap(), "Bearer two");
}

#[test]
fn a_token_stays_in_use_while_its_file_cannot_be_read() {
    let (folder, token) = file();
    std::fs::write(folder.path().join("driver.grpo.dev"), "one").unwrap();
    assert!(token.header().unwrap().is_sensitive());
    folder.close().unwrap();
    age(&token);
    assert_eq!(token.header().unwrap().to_str().unwrap(), "Bearer one");
}
