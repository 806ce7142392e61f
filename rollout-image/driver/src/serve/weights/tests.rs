use super::*;

#[test]
fn a_range_is_a_part_of_the_file_or_the_whole_where_it_means_no_single_part() {
    let wanted = |header: &str| {
        let headers = HeaderMap::from_iter([(RANGE, header.parse().unwrap())]);
        Wanted::of(&headers, 10)
    };
    assert_eq!(Wanted::of(&HeaderMap::new(), 10), Wanted::Whole);
    assert_eq!(wanted("bytes=4-"), Wanted::Part(4..10));
    assert_eq!(wanted("bytes=0-0"), Wanted::Part(0..1));
    assert_eq!(wanted("bytes=-3"), Wanted::Part(7..10));
    assert_eq!(wanted("bytes=2-99"), Wanted::Part(2..10));
    assert_eq!(wanted("bytes=0-1, 4-5"), Wanted::Whole);
    assert_eq!(wanted("lines=1-2"), Wanted::Whole);
    assert_eq!(wanted("bytes=10-"), Wanted::None);
}
