use super::*;

const PATIENCE: Duration = Duration::from_secs(900);

/// Fails a call for the image that begins now.
fn fails(images: &Images, image: &str, why: &str) -> bool {
    images.failed(image, why, Instant::now())
}

async fn after(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_image_is_waited_for_from_its_first_failure_by_whichever_call() {
    let images = Images::new(PATIENCE);
    for _ in 0..29 {
        assert!(fails(&images, "a:1", "503"));
        after(30).await;
    }
    assert!(fails(&images, "a:1", "503") && fails(&images, "b:1", "503"));
    after(30).await;
    assert!(
        !fails(&images, "a:1", "503"),
        "given up, also by a call that begins now"
    );
    assert!(fails(&images, "b:1", "503"));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_pulled_or_not_asked_for_in_a_while_has_a_new_chance() {
    let images = Images::new(PATIENCE);
    fails(&images, "a:1", "503");
    after(899).await;
    images.pulled("a:1");
    assert_eq!(images.message(), None);
    assert!(fails(&images, "a:1", "503"));
    after(600).await;
    fails(&images, "a:1", "503");
    after(600).await;
    assert!(!fails(&images, "a:1", "503"));
    after(900).await;
    assert_eq!(images.message(), None);
    assert!(fails(&images, "a:1", "503"));
}

#[tokio::test(start_paused = true)]
async fn a_message_names_the_image_its_cause_and_how_long_it_is_waited_for() {
    let images = Images::new(PATIENCE);
    fails(&images, "reg/a:1", "no such tag");
    let message = images.message().unwrap();
    assert!(
        message.starts_with("image reg/a:1 cannot be pulled and is waited for up to 15 min: no such tag. Check"),
        "{message}"
    );
    after(600).await;
    fails(&images, "reg/a:1", "no such tag");
    after(301).await;
    let message = images.message().unwrap();
    assert!(
        message.contains("for 15 min; episodes of its tasks are void"),
        "{message}"
    );
    for image in ["b", "c", "d", "e"] {
        fails(&images, image, "503");
    }
    let message = images.message().unwrap();
    assert!(message.contains("; 2 more images cannot be pulled. "), "{message}");
}

#[tokio::test(start_paused = true)]
async fn who_follows_hears_of_a_failure_at_once_and_of_what_was_forgotten_within_a_minute() {
    let images = Images::new(PATIENCE);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let followed = images.clone();
    tokio::spawn(async move { followed.follow(|message| tell.send(message).unwrap()).await });
    assert_eq!(told.recv().await, Some(None));
    let began = Instant::now();
    fails(&images, "a:1", "503");
    assert!(told.recv().await.flatten().is_some());
    assert_eq!(began.elapsed(), Duration::ZERO);
    while told.recv().await.unwrap().is_some() {}
    assert!(
        (900..=960).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_also_where_its_pauses_are_longer_than_the_patience() {
    let (images, began) = (Images::new(Duration::from_millis(300)), Instant::now());
    assert!(images.failed("a:1", "503", began));
    after(1).await;
    assert!(!images.failed("a:1", "503", began));
    assert!(fails(&images, "b:1", "503"));
}
