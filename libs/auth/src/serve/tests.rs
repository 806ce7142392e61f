use super::*;

#[test]
fn a_process_may_open_as_many_files_as_its_connections_need_if_the_system_allows_it() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let files = open_files();
    assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, files);
    assert!(files >= hard.min(OPEN_FILES));
    let limits = Bounds::of_process().limits;
    assert!((limits.known + limits.unknown) as u64 <= files / 2);
}
