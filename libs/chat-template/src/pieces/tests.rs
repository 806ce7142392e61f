use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::path::Path;
use std::sync::LazyLock;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{NFC, Prepend};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, TruncationParams};

static DEMO: LazyLock<Tokenizer> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model/tokenizer.json");
    Tokenizer::from_file(file).unwrap()
});

impl Pieces {
    fn cuts_at(&self) -> usize {
        self.cuts.as_ref().map_or(0, |cuts| cuts.ids.len())
    }
}

/// The demo's tokenizer with this token added.
fn with(token: AddedToken) -> Tokenizer {
    let mut tokenizer = DEMO.clone();
    tokenizer.add_tokens(&[token]);
    tokenizer
}

/// Tokenizers whose texts are cut: also those that normalize each piece, with a token that is found afterwards.
static CUT: LazyLock<[Tokenizer; 3]> = LazyLock::new(|| {
    let mut composed = with(AddedToken::from("word12", false).normalized(true));
    composed.with_normalizer(Some(NFC));
    let mut prepended = DEMO.clone();
    prepended.with_normalizer(Some(Prepend::new(" ".into())));
    [DEMO.clone(), composed, prepended]
});

fn part() -> impl Strategy<Value = String> {
    let tokens = DEMO.get_added_tokens_decoder().into_values().map(|token| token.content);
    let mut tokens: Vec<String> = tokens.collect();
    tokens.sort();
    let parts = [
        "<|im_",
        "start|>",
        "<|im_start|",
        " ",
        "\n",
        "\t",
        "a",
        " word",
        "12",
        "==",
        "\u{e9}",
        "e",
        "\u{301}",
        "\u{1f600}",
    ];
    tokens.extend(parts.map(str::to_owned));
    proptest::sample::select(tokens)
}

proptest! {
    #[test]
    fn kept_pieces_have_the_ids_of_the_whole_text(parts in proptest::collection::vec(part(), 0..40)) {
        let text = parts.concat();
        for tokenizer in CUT.iter() {
            let pieces = Pieces::of(tokenizer).unwrap();
            prop_assert!(pieces.cuts_at() > 0);
            let whole = ids_of(tokenizer, &text).unwrap();
            for time in ["first", "second"] {
                let ids = pieces.encode(&text, |piece| ids_of(tokenizer, piece)).unwrap();
                prop_assert_eq!(&ids, &whole, "the {} time", time);
            }
        }
    }
}

#[test]
fn only_new_messages_of_a_growing_conversation_are_encoded() {
    let pieces = Pieces::of(&DEMO).unwrap();
    let encoded = |text: &str| {
        let encoded = RefCell::new(Vec::new());
        let encode = |piece: &str| {
            encoded.borrow_mut().push(piece.to_owned());
            ids_of(&DEMO, piece)
        };
        pieces.encode(text, encode).unwrap();
        encoded.into_inner()
    };
    let first = "<|im_start|>system\nBe short.<|im_end|>\n";
    assert_eq!(encoded(first), ["system\nBe short.", "\n"]);
    assert_eq!(
        encoded(&format!("{first}<|im_start|>user\nHello<|im_end|>\n")),
        ["user\nHello"]
    );
}

#[test]
fn a_tokenizer_whose_pieces_depend_on_each_other_encodes_a_prompt_as_a_whole() {
    assert_eq!(
        Pieces::of(&DEMO).unwrap().cuts_at(),
        DEMO.get_added_tokens_decoder().len()
    );
    let plain = with(AddedToken::from("<x>", true));
    assert_eq!(
        Pieces::of(&plain).unwrap().cuts_at(),
        DEMO.get_added_tokens_decoder().len() + 1
    );

    let takes_spaces = with(AddedToken::from("<x>", true).lstrip(true));
    let takes_later_spaces = with(AddedToken::from("<x>", true).rstrip(true));
    let whole_words = with(AddedToken::from("xyz", true).single_word(true));
    let mut bounded = DEMO.clone();
    bounded.with_truncation(Some(TruncationParams::default())).unwrap();
    let number = with(AddedToken::from("7", true));
    for tokenizer in [
        takes_spaces,
        takes_later_spaces,
        whole_words,
        number,
        bounded,
        first_piece_differs(),
    ] {
        let pieces = Pieces::of(&tokenizer).unwrap();
        assert_eq!(pieces.cuts_at(), 0);
        let text = "a <x> b xyz wxyz <x>";
        let ids = pieces.encode(text, |piece| ids_of(&tokenizer, piece)).unwrap();
        assert_eq!(ids, ids_of(&tokenizer, text).unwrap());
    }
}

/// As in Mistral 7B v0.3: a word at the start of a text begins with a space, one behind an added token does not.
fn first_piece_differs() -> Tokenizer {
    let vocabulary = [("<unk>", 0), ("\u{2581}", 1), ("a", 2), ("b", 3), ("c", 4), ("D", 5)];
    let vocabulary = vocabulary.map(|(token, id)| (token.to_owned(), id));
    let model = BPE::builder().vocab_and_merges(vocabulary, Vec::new());
    let mut tokenizer = Tokenizer::new(model.unk_token("<unk>".into()).build().unwrap());
    tokenizer.with_pre_tokenizer(Some(Metaspace::new('\u{2581}', PrependScheme::First, true)));
    tokenizer.add_special_tokens(&[AddedToken::from("<s>", true)]);
    tokenizer
}

#[test]
fn pieces_are_kept_until_others_were_used_more_recently() {
    let mut kept = Kept::default();
    let is_kept = |kept: &mut Kept, text: &str| kept.ids_of(&Piece::Text(text)).is_some();
    kept.add("used".into(), [7].into());
    kept.add("used".into(), [7].into());
    kept.add("unused".into(), [7].into());
    assert_eq!(kept.bytes, size("used", &[7]) + size("unused", &[7]));
    let text = "b".repeat(100 << 10);
    for at in 0..2 * MOST_BYTES / text.len() {
        kept.add(format!("{at}{text}").into(), [].into());
        assert!(is_kept(&mut kept, "used"), "{at}");
        assert!(kept.bytes <= MOST_BYTES / 2);
    }
    assert!(!is_kept(&mut kept, "unused") && !is_kept(&mut kept, &format!("0{text}")));
    let long = "c".repeat(LONGEST + 1);
    kept.add(long.as_str().into(), [7].into());
    assert!(!is_kept(&mut kept, &long));
}
