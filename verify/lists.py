"""Closed lists: the words that are understood in an answer. Any other word makes it another answer.

    lead(line) -> the line without "The answer is" and the like, in the languages of most model output
    units(text, known) -> "12 \\\\text{ cm}" as "12"; "3 \\\\text{ million}" as "3000000"; "12 below zero" as it is

Every list is data: a language, a unit or a currency is added to its line. Test: pytest tests/test_graders.py
"""

import re
from fractions import Fraction
from functools import lru_cache

# --- Before an answer: adverbs, then an article, adjectives, a noun, a verb, each of any language or missing. ---
ADVERBS = (
    r"so|thus|hence|therefore|then|finally|consequently|in conclusion|i think|"
    r"we (?:get|find|obtain|conclude)(?: that)?|"
    r"∴|⇒|→|=+>|\\therefore|\\Rightarrow|"
    "所以|因此|因而|故|综上(?:所述)?|于是|從而|从而|よって|したがって|従って|ゆえに|따라서|그러므로|por "
    "(?:lo )?tanto|entonces|luego|"
    "así que|donc|ainsi|par conséquent|also|somit|daher|folglich|portanto|logo|assim|então|quindi|dunque|pertanto|"
    "итак|значит|таким образом|следовательно|отже|إذن|إذًا|لذلك|وبالتالي|अतः|इसलिए|ดังนั้น|vậy|do đó|jadi|"
    "maka|zatem|więc|dus|"
    "sonuç olarak|o halde|alltså"
)
ARTICLES = r"the|my|our|la|el|mi|le|l['’]|die|das|der|meine|a|o|il|los|las|les|het|de"
ADJECTIVES = (
    "final|correct|right|best|最终|最後の|最终的|最終的な|正确|正しい|正確|参考|的|최종|정확한|올바른|"
    "correcta?|finale?|bonne?|gute|buena|endgültige|"
    "richtige|final|corretta|correta|correcte|правильный|окончательный|النهائي|النهائية|الصحيح|الصحيحة|अंतिम|"
    "सही|สุดท้าย|"
    "ที่ถูกต้อง|cuối cùng|đúng|akhir|akhirnya|benar|doğru|ostateczna|prawidłowa|juiste|rätta"
)
NOUNS = (
    "answers?|results?|values?|solutions?|options?|choices?|答案|结果|結果|解|解答|答え|答|正解|选项|選項|정답|답|답안|결과|"
    "respuestas?|resultados?|solución|soluciones|opción|réponses?|résultats?|antwort|ergebnis|endergebnis|"
    "lösung(?:en)?|"
    "respostas?|solução|alternativa|opção|rispost[ae]|risultat[oi]|soluzion[ei]|opzione|ответ|результат|"
    "решение|відповідь|"
    "الجواب|الإجابة|النتيجة|الحل|पاسخ|پاسخ|उत्तर|जवाब|คำตอบ|đáp án|đáp số|kết quả|câu trả lời|jawaban|"
    "jawabannya|hasil|hasilnya|"
    "cevap|sonuç|yanıt|odpowiedź|wynik|antwoord|resultaat|svar(?:et)?|התשובה|תשובה"
)
VERBS = (
    "is|are|equals|=|是|为|為|等于|は|が|은|는|es|son|est|sont|ist|sind|lautet|lauten|é|são|è|sono|هو|هي|है|"
    "हैं|คือ|là|adalah|"
    "to|jest|är|היא|"
    "—|–"
)
CHOOSES = r"i (?:would )?(?:choose|pick|select)|应?选(?:择)?|應選|故选|elijo|je choisis|ich wähle|选"
NAMES = "option|choice|letter|选项|選項|opción|alternativa|вариант"  # before a letter: option B
TAILS = r"(?:です|である|となります|になります|となる|입니다|이다|है|हैं|ครับ|ค่ะ|dir|dır)"
SPACE = r"[\s,，、،]*"
AFTER_WORD = r"(?![^\W\d_])"


def spelt(words: str) -> str:
    """A pattern for one of the words: a Latin or Cyrillic letter behind it would make it another."""
    ends = "|".join(word + (AFTER_WORD if re.search(r"[a-zà-ÿа-я]\W*$", word) else "") for word in words.split("|"))
    return f"(?:{ends}){SPACE}"


LEAD = re.compile(
    rf"(?:{spelt(ADVERBS)}){{0,2}}(?:{spelt(CHOOSES)}|"
    rf"(?:{spelt(ARTICLES)})?(?:{spelt(ADJECTIVES)}){{0,2}}{spelt(NOUNS)}"
    rf"(?:{spelt(ADJECTIVES)}){{0,2}}(?:{spelt(VERBS)}){{0,2}})?[\s*_]*[:：=]?[\s*_]*",
    re.I,
)
BEFORE_LETTER = re.compile(f"^{spelt(NAMES)}", re.I)
TAIL = re.compile(f"{TAILS}$")
# A sentence that ends with an answer behind is, are or equals: what may stand before, beside words of the prompt.
SUBJECTS = set(
    "the a an this that these those it its there here he she they we of to in for and with from his her their our your "
    "total sum product difference quotient value values number numbers amount area perimeter volume length "
    "width height "
    "distance speed cost price time angle probability chance ratio average mean median mode range radius diameter age "
    "slope degree measure size count weight mass rate temperature remainder digit digits answer result solution "
    "solutions point equation expression function matrix vector set interval limit "
    "minimum maximum smallest largest least greatest final correct required desired which so thus "
    "hence therefore "
    "then finally expected units question problem".split()
)
IS = re.compile(r"(?<![A-Za-z])(?:is|are|equals)(?![A-Za-z]):?")
DENIES = re.compile(
    r"\b(?:not|no|never|nor|neither|none|cannot|without|except|unless|whether|if|or|than|wrong|incorrect|false|maybe|"
    r"perhaps|unknown|unclear|unsure|half|twice|inverse|opposite|reciprocal|negative|negated|at (?:least|"
    r"most)|of the (?:answer|result|solution))\b|n['’]t\b|\?",
    re.I,
)
# --- Behind a number ---
PREFIXES = "m|k|c|d|µ|μ|n|M|G|T|h|p"
SYMBOLS = "m|g|s|L|l|N|J|W|V|A|K|C|F|H|T|mol|Hz|Pa|Wh|eV|cal|B|b|bit|byte|bar|Ω|bps|rad|lm|lx|Bq|Gy|Sv|t"
UNITS = set(
    "h hr hrs min mins sec secs d wk yr yrs mo in ins ft yd yds mi oz lb lbs gal pt qt mph kph kmh rpm fps psi atm "
    "ha sq cu deg rad sr dB amu u cc fl ppm Km Kg KM KG ML Hrs MPH USD EUR GBP CNY RMB JPY INR CAD AUD CHF "
    "Rs cents cent ¢ p units unit "
    "Ω ohm ohms eV Å L kWh kmph nm sqft "
    "个 個 人 名 本 枚 円 元 块 只 隻 条 棵 张 張 次 天 日 年 月 周 週 岁 歳 才 时 時 小时 时间 時間 分 分钟 "
    "分鐘 秒 米 厘米 千米 公里 毫米 "
    "平方米 平方厘米 立方米 立方厘米 克 千克 公斤 吨 升 毫升 度 倍 种 種 支 根 页 箱 回 点 匹 台 杯 개 명 원 "
    "살 시간 분 초 일 년 마리 권 장 번 "
    "м км см мм кг г т л мл ч мин с руб рублей рубля р € £ $ ₽ ₹ ₩ ¥ °".split()
) | {prefix + symbol for prefix in [*PREFIXES.split("|"), ""] for symbol in SYMBOLS.split("|")}
UNITS -= {"am", "pm"}  # of the clock
NAMED_UNITS = set(
    "meter metre kilometer kilometre centimeter centimetre millimeter millimetre micrometer nanometer inch inche foot "
    "feet yard mile acre hectare gram kilogram milligram tonne ton pound ounce liter litre milliliter "
    "millilitre gallon "
    "pint quart cup tablespoon teaspoon second minute hour day week fortnight month year decade century centurie "
    "millisecond degree radian celsius fahrenheit kelvin newton joule watt kilowatt volt ampere amp ohm "
    "hertz pascal mole "
    "calorie kilocalorie byte bit kilobyte megabyte gigabyte dollar cent euro pound penny pence pennie rupee yen yuan "
    "peso ruble rouble franc won shilling nickel dime quarter unit square cubic person people piece item time "
    "metro kilómetro centímetro hora minuto segundo día año grado dólar metros stunde stunden minuten tage jahre grad "
    "heure jour an euro mètre centimètre kilomètre рубль рублей метр метров час часов минут градусов год "
    "года лет день дней stück".split()
)
LINKS = set("per of in the a an total altogether left old long each away".split())  # beside a unit or a noun, not alone
ALONE = set("total altogether approximately approx about roughly exactly in".split())
NO_NOUN = set(
    "not nor and for but less more than least most fewer below above over under between beyond either "
    "neither each from "
    "plus minus times half twice double triple wrong false incorrect correct one two three four five six "
    "seven eight nine "
    "ten zero first third fourth fifth sixth tenth tenths hundredth hundredths thousandth squared cubed factorial mod "
    "modulo base prime negative positive with without what which who how many much find given value all any some only "
    "divided multiplied remainder".split()
)
SCALES = {
    name: Fraction(10) ** power
    for power, names in {
        2: "hundred|hundreds|百|백",
        3: "thousand|thousands|千|천|тысяч|тысячи|тыс|mil|mille|tausend",
        4: "万|萬|만",
        5: "lakh|lakhs|lac",
        6: "million|millions|mn|mln|millón|millones|millionen|mio|миллион|миллионов|миллиона|млн|百万",
        7: "crore|crores|千万",
        8: "亿|億|억",
        9: "billion|billions|bn|milliard|milliards|milliarden|mrd|миллиард|миллиардов|млрд",
        12: "trillion|trillions|tn|兆|조",
    }.items()
    for name in names.split("|")
} | {"dozen": Fraction(12), "dozens": Fraction(12)}
SCALE = "|".join(sorted(SCALES, key=len, reverse=True))
SCALED = re.compile(
    rf"(?<![0-9.,])([0-9]{{1,30}}(?:,[0-9]{{3}})*(?:\.[0-9]{{1,20}})?) ?"
    rf"(?:(\\text ?\{{) ?k(?= ?\}})|(\\text ?\{{)? ?((?i:{SCALE}){AFTER_WORD}))"
)
CURRENCY = re.compile(
    r"(?:US|HK|NT|[ACR]|\\text ?\{ ?US ?\}) ?\\?\$(?= ?[0-9])|\\?\$|[€£¥₹₩₽₪₺₫฿￥¢]|\\(?:pounds|euro|yen)(?![A-Za-z])|"
    r"(?:\\text ?\{ ?)?(?<![A-Za-z])(?:Rs|USD|EUR|GBP|CNY|RMB|INR|JPY|NT|HK)\.? ?\}?(?= ?[0-9])"
)


def lead(line: str) -> str | None:
    """What stands behind a lead of the list; None for a line that has none.

    >>> lead("So the final answer is: 42"), lead("答案：42"), lead("=> 42"), lead("It is 42")
    ('42', '42', '42', None)
    """
    rest = line
    while (found := LEAD.match(rest)) and found.end():  # Final answer: The final answer is 42
        rest = rest[found.end() :]
    return rest if rest != line else None


def scaled(match) -> str:
    """A number times a scale word, with what its \\text{ holds behind it."""
    scale = SCALES[match[4].casefold()] if match[4] else 1000
    value = Fraction(match[1].replace(",", "")) * scale
    whole = value.numerator if value.denominator == 1 else float(value)
    return f"{whole}{match[2] or match[3] or ''}"


FUNCTIONS = "and|or|pi|sqrt|sin|cos|tan|cot|sec|csc|log|ln|lg|exp|inf|infinity|mod|gcd|lcm|if|over|choose"
BARE_WORD = rf"(?!(?:{FUNCTIONS}){AFTER_WORD})(?:(?![¼-¾⅐-⅞²³¹⁰-⁹])[^\W\d_])++"
PIECE = rf"{BARE_WORD}\.?|\\text ?\{{[^{{}}]*\}}|\\(?:mu|Omega){AFTER_WORD}|\((?: ?[^\W\d_]{{2,}}){{1,3}} ?\)"
BEHIND = re.compile(  # words behind a number, to the end of a formula or of its part
    rf"(?:(?<=[0-9)\]])|(?<=[0-9}}]\}})|(?<=\\pi))(?<!\^[0-9])(?<!\^\{{[0-9]\}})( ?(?:{PIECE})"
    rf"(?:{PIECE}|\\cdot{AFTER_WORD}|\^ ?(?:\{{ ?-?[0-9] ?\}}|-?[0-9])|[ /·²³°])*+)(?= ?(?:$|[,;)\]]|and|or))"
)
RAISED = dict.fromkeys(map(ord, "²³"), " ")
WORD = re.compile(r"\\text ?\{([^{}]*)\}|([^\W\d_]+)")
BARE = re.compile("[ckm]m|m[glLs]|[KkM]g|kW|ft|in|yd|mi|oz|lb|hr|sq|Hz|Pa|[GMk]B|Rs|[msgLNJWV]|.{3,}|[^a-zA-Z].*")


@lru_cache(maxsize=4_096)
def understood(word: str, known: str) -> bool:
    """Whether a word behind a number is a unit, or a noun of the prompt or the reference.

    known  these two, in small letters
    """
    folded = word.casefold()
    if word in UNITS or {folded, folded.removesuffix("s"), folded.removesuffix("es")} & NAMED_UNITS:
        return True
    if folded in NO_NOUN or folded in SCALES or len(folded) < 3 and folded.isascii():
        return False
    return stands_in(word, known)


def stands_in(word: str, known: str) -> bool:
    """Whether a text in small letters holds the word, in the singular or the plural."""
    stem = re.sub("(?<=[a-zà-ÿ]{2})(?:s|es)$", "", word.casefold())
    stem = re.sub("(?:ie|y|e)$", "", stem) if len(stem) > 3 else stem
    return re.search(rf"(?<![^\W\d_]){re.escape(stem)}", known) is not None


def units(match, known: str) -> str:
    """Nothing in place of words behind a number that are all understood; otherwise the words.

    known  as in `understood`: the reference, a line end, the prompt. A letter of the reference is no unit.
    """
    run = match[1]
    found = 0
    compound = re.search(r"/|\^ ?\{ ?-", run)
    plain = re.sub(r"\\mu ?", "µ", run.translate(RAISED))
    plain = plain.replace("\\Omega", "Ω").replace("\\cdot", " ")
    for typed, bare in WORD.findall(plain):
        for word in re.findall(r"[^\W\d_]+|[^ .'/·()²³°^0-9-]", typed) if typed else [bare]:
            if not (typed or compound or BARE.fullmatch(word)) or len(word) == 1 and bare and names(word, known):
                return run
            if understood(word, known) or word.casefold() in ALONE:
                found += 1
            elif word.casefold() not in LINKS:
                return run
    return run[len(run.rstrip()) :] if found else run


def names(letter: str, known: str) -> bool:
    """Whether the reference holds the letter by itself."""
    return re.search(rf"(?<![a-z\\]){letter.casefold()}(?![a-z])", known.partition("\n")[0]) is not None
