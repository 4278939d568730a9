"""Closed lists: the words that are understood in an answer. Any other word makes it another answer.

    behind_lead(line) -> the line without "The answer is" and the like, in the languages of most model output
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
# Dimension: its units, each with its spellings; the SI's prefixes may stand before those of a unit with a star.
MEASURES = {
    "length": "*m meter metre metro mètre метр метров м 米|km 千米 公里 км kilómetro quilômetro quilómetro chilometro|"
    "cm 厘米 см centímetro zentimeter centimètre centimetro|mm 毫米 мм|"
    "in inch inche|ft foot feet|yd yard|mi mile|Å",
    "area": "ha hectare|acre|sqft",
    "speed": "mph|fps",
    "mass": "*g gram gramm gramme gramo grama grammo gr г 克|kg 千克 公斤 кг|*t ton tonne т 吨|oz ounce|u amu",
    "volume": "*L l liter litre litro л 升|mL 毫升 мл|gal gallon|pt pint|qt quart|cup|tablespoon|teaspoon|cc|fl",
    "mass money": "lb pound £ GBP",  # 12 pounds may be either
    "money": "$ dollar dólar USD CAD AUD HK NT|cent ¢|€ EUR euro|¥ ￥ CNY RMB JPY yuan yen 元 块 円|₹ Rs INR rupee|"
    "₩ won 원|₽ р руб рублей рубля рубль ruble rouble|CHF franc|peso|shilling|p pence penny pennie|nickel|dime|"
    "quarter|₪|₺|₫|฿",
    "time": "*s sec second segundo seconde sekunde sekunden с 秒 초|"
    "min minute minuto minuten мин минут 分 分钟 分鐘 분|"
    "h hr hour hora heure stunde stunden час часов ч 小时 时间 時間 时 時 시간|"
    "d day día jour tage день дней 天 日 일|wk week semana semaine woche wochen settimana 周 週|fortnight|"
    "mo month monat monate mois 月|"
    "yr year año an jahre год года лет 年 岁 歳 才 년 살|decade|century centurie",
    "angle": "*rad radian|° deg degree circ grad grado gradi degré градусов 度|sr",
    "temperature, charge": "*C celsius coulomb|*F fahrenheit farad|*K kelvin",
    "force": "*N newton",
    "energy": "*J joule|*eV|*Wh|*cal calorie",
    "power": "*W watt",
    "pressure": "*Pa pascal|*bar|atm|psi",
    "voltage": "*V volt",
    "current": "*A amp ampere",
    "resistance": "*Ω ohm",
    "frequency": "*Hz hertz|rpm",
    "amount": "*mol mole",
    "data": "*B byte|*b bit|*bps",
    "other": "*H|*T|*lm|*lx|*Bq|*Gy|*Sv|dB|ppm",
}
PREFIXES = "milli kilo centi deci μ-micro nano Mega Giga Tera hecto pico"
COUNTS = set(  # units that may stand for each other
    "unit person people piece item time stück 个 個 人 名 本 枚 只 隻 条 棵 张 張 次 倍 种 種 支 根 页 箱 回 点 匹 "
    "台 杯 개 명 마리 권 장 번".split()
)
COUNT = ("count", "个")  # for each of them
UNITS = {}  # spelling: (dimension, unit)
for dimension, lines in MEASURES.items():
    for line in lines.split("|"):
        spellings = line.strip("*").split()
        for prefix in ["", *PREFIXES.split()] if "*" in line else [""]:
            unit = (dimension, prefix[:1] + spellings[0])
            full = prefix.lower().rpartition("-")[2]
            UNITS |= {(prefix[:1] if len(name) < 4 else full) + name: unit for name in spellings}
DEGREE = {(UNITS["°"], 1)}
LINKS = set("of in the a an total altogether left old long each away".split())  # beside a unit or a noun, not alone
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


def behind_lead(line: str) -> str | None:
    """What stands behind a lead of the list; None for a line that has none.

    >>> [behind_lead(line) for line in ("So the final answer is: 42", "答案：42", "=> 42", "It is 42")]
    ['42', '42', '42', None]
    """
    rest = line
    while (lead_match := LEAD.match(rest)) and lead_match.end():  # Final answer: The final answer is 42
        rest = rest[lead_match.end() :]
    return rest if rest != line else None


def scaled(match) -> str:
    """A number times a scale word, with what its \\text{ holds behind it."""
    scale = SCALES[match[4].casefold()] if match[4] else 1000
    value = Fraction(match[1].replace(",", "")) * scale
    whole = value.numerator if value.denominator == 1 else float(value)
    return f"{whole}{match[2] or match[3] or ''}"


FUNCTIONS = "and|or|pi|sqrt|sin|cos|tan|cot|sec|csc|log|ln|lg|exp|inf|infinity|mod|gcd|lcm|if|over|choose"
BARE_WORD = rf"(?!(?:{FUNCTIONS}){AFTER_WORD})(?:(?![¼-¾⅐-⅞²³¹⁰-⁹])[^\W\d_])++"
PIECE = (
    rf"{BARE_WORD}\.?|\\text ?\{{(?:[^{{}}]|\^\{{-?[0-9]\}})*\}}|\\(?:mu|Omega){AFTER_WORD}|"
    r"\^ ?\{? ?\\circ ?\}?|\((?: ?[^\W\d_]{2,}){1,3} ?\)"
)
BEHIND = re.compile(  # words behind a number, to the end of a formula or of its part
    rf"(?:(?<=[0-9)\]])|(?<=[0-9}}]\}})|(?<=\\pi)|(?<=\\pi\}}))(?<!(?<!10)\^[0-9])(?<!(?<!10)\^\{{[0-9]\}})"
    rf"( ?(?:{PIECE})(?:{PIECE}|\\cdot{AFTER_WORD}|\^ ?(?:\{{ ?-?[0-9] ?\}}|-?[0-9])|[ /·²³°])*+)"
    r"(?= ?(?:$|[,;)\]]|and|or))"
)
BARE = re.compile("of|[ckm]m|m[glLs]|[KkM]g|kW|ft|in|yd|mi|oz|lb|hr|sq|Hz|Pa|[GMk]B|Rs|[msgLNJWV]|.{3,}|[^a-zA-Z].*")
TOKEN = re.compile(r"([^\W\d_²³]+|/|[^ .'·²³°()^{}\\0-9-])(?:\}? ?\^ ?\{? ?(-?[0-9]))?")
# Words of a prompt. A short one may be another word, but for one behind a number, and beside a line.
NAMED = re.compile(
    r"(?:(?<=[0-9/{])|(?<=[0-9] ))[^\W\d_]+|[^\W\d_](?=/)|(?!(?:in|an)(?![^\W\d_]))[^\W\d_]{2,}|"
    r"\$(?=[0-9])|(?<=\\)\$|[€£¥₹₩₽¢°]"
)


WIDE = "|".join(sorted((name for name in UNITS if name > "\u2e80"), key=len, reverse=True))  # no spaces around them
ASKED = re.compile(  # the unit that a prompt asks for: "how many seconds", "in km/h", "in square metres", 多少小时
    r"\b(?:(?:how many|in|to|en|em|cu[aá]nt[oa]s|combien de|wie viele|quant[ieoa]s?|сколько|в) |combien d['’])"
    r"(?:degrees? (?=[^\W\d_])|° ?)?((?:(?:square|cubic) )?(?!an?\b)[^\W\d_]+(?:(?:/| per )[^\W\d_]+)*)(?![\w/^²³])|"
    rf"(?:多少|几|幾|何|몇) ?({WIDE}|[A-Za-z]+(?:/[A-Za-z]+)?(?![A-Za-z/^²³]))",
    re.I,
)
# What a prompt asks the number of, up to a verb or a preposition: "how many red marbles".
HOW_MANY = re.compile(
    r"how many (?:more |fewer )?((?:(?!(?:is|are|was|were|be|do|does|did|can|could|will|would|should|must|may|has|have|"
    r"had|of|in|on|at|to|from|with|for|by|than|that|there|it|he|she|they|we|you|i|more|fewer)(?![^\W\d_]))"
    r"[^\W\d_]+ ?)+)"
)
# Likewise in other languages, the noun alone
HOW_MANY_ELSEWHERE = re.compile(r"(?:cu[aá]nt[oa]s|combien d(?:e |['’])|wie viele|quant[aeio]s?) ?([^\W\d_]+)")
# What a prompt for per cent says, beside numbers such as 5%. Without it, the sign makes another number: 24\% is 0.24.
PERCENT = re.compile(
    r"(?<![0-9])(?<![0-9][ \\])(?<![0-9] \\)%|percent|per cent|prozent|процент|pourcent|porcent|百分|퍼센트|パーセント|"
    r"\brate\b[^.?!]{0,60}\?",
    re.I,
)
RATIO = re.compile("ratio|比|verhältnis|rapport|raz[oó]n|отношени", re.I)  # of a prompt: 9:10 is a quotient


@lru_cache(maxsize=4_096)
def unit_of(word: str) -> tuple[str, str] | None:
    """(dimension, unit) that a word spells, in the singular or the plural; None for another word.

    >>> unit_of("Kilometres"), unit_of("公里"), unit_of("hrs"), unit_of("M")
    (('length', 'km'), ('length', 'km'), ('time', 'h'), None)
    """
    folded = word.casefold()
    if word in UNITS or len(word) == 1:
        return UNITS.get(word)
    return UNITS.get(folded) or UNITS.get(folded.removesuffix("s"))


def product_of(words: str) -> set:
    """{(unit, power)} that words such as km/h or square metres spell; empty for other words, and for degrees."""
    powers = set()
    for sign, part in zip([1, *[-1] * len(words)], re.split("/| per ", words)):
        *size, word = part.split()
        powers.add((unit_of(word), sign * {"square": 2, "cubic": 3}.get("".join(size).casefold(), 1)))
    return powers if all(unit for unit, _ in powers) and powers.isdisjoint(DEGREE) else set()


def same_units(given: set, wanted: set, prompt: str) -> bool:
    """Whether an answer has the reference's units, or none. Without any in the reference, an answer's units are right
    unless the prompt asks for another one, or names others of their dimension only. Degrees may be left out.

    given, wanted  ((dimension, unit), power)
    """
    if units := wanted - DEGREE:
        return given - DEGREE in (set(), units)
    asked = [product for words in ASKED.findall(prompt) if (product := product_of("".join(words)))]
    if wanted and any("temperature" not in unit[0] for unit, _ in given - DEGREE):
        return False  # metres for degrees
    if asked and given and given != wanted:
        bare = given - DEGREE  # degrees alone are those of a temperature too
        return bare in asked or not bare and any("temperature" in unit[0] for product in asked for unit, _ in product)
    named = {unit for word in NAMED.findall(prompt) if (unit := unit_of(word))} | {unit for unit, _ in wanted}
    for unit, _ in given:
        others = [other for other in named if unit[0] in other[0] or other[0] in unit[0]]
        if others and unit not in others:
            return False
    return True


def currency(match, powers: set) -> str:
    """Nothing in place of a sign of money, which `powers` gets; a $ of several may be that of a formula."""
    if match[0] != "$" or match.string.count("$") == 1:
        sign = re.sub(r"\\text|[\\{} .]", "", match[0])
        powers.add((unit_of(sign) or UNITS["$"], 1))
    return ""


def stands_in(word: str, known: str) -> bool:
    """Whether a text in small letters holds the word, in the singular or the plural."""
    stem = re.sub("(?<=[a-zà-ÿ]{2})(?:s|es)$", "", word.casefold())
    stem = re.sub("(?:ie|y|e)$", "", stem) if len(stem) > 3 else stem
    return re.search(rf"(?<![^\W\d_]){re.escape(stem)}", known) is not None


def units(match, known: str, powers: set) -> str:
    """Nothing in place of words behind a number that are all units, or nouns of the prompt; otherwise the words.

    known  the reference, a line end and the prompt, in small letters. A letter of the reference is no unit.
    powers  gets the units, as ((dimension, unit), power)
    """
    run = match[1]
    flat = re.sub(r"\\mu ?(?:\\text ?\{ ?)?|µ", "μ", run.replace("\\Omega", "Ω"))
    flat = re.sub("kmp?h|kph", "km/h", flat.replace("\\text", " ").replace("\\cdot", " "))
    flat = re.sub(r"(?:(?i:square|sq)\b\.?|平方|(?i:quadrat)(?=[^\W\d_])) ?([^\W\d_]+)", r"\1^2", flat)
    flat = re.sub(r"(?:(?i:cubic|cu)\b\.?|立方|(?i:kubik)(?=[^\W\d_])) ?([^\W\d_]+)", r"\1^3", flat)
    typed = re.search(r"\\text|\\circ|/|\^ ?\{ ?-", run + flat)
    product = set()
    sign = 1
    words: list[str] = []  # units and nouns
    nouns: list[str] = []
    head = ""  # the last of them before "of" and the like
    counts = False
    for token, power in TOKEN.findall(flat):
        word = token.casefold()
        if len(token) == 1 and f"({token})" in match.string:  # the argument of a function: f(s) = 3s
            return run
        if not typed and (not BARE.fullmatch(token) or len(token) == 1 and names(token, known)):
            return run
        if word in ("/", "per"):
            sign = -1
        elif unit := unit_of(token):
            product.add((unit, sign * int(power or 1)))
            words.append(token)
        elif word in ALONE or word.removesuffix("s") in COUNTS:
            counts = True
            if word not in ALONE | {"unit", "units"}:
                product.add((COUNT, 1))
        elif word in LINKS:
            head = head or "".join(words[-1:])
        elif is_noun(word, known):
            words.append(word)
            nouns.append(word)
        else:
            return run
    if re.search("[0-9]", TOKEN.sub("", flat)) or words and not is_asked(head or words[-1], nouns, known):
        return run
    powers |= product
    if counts or nouns or product - DEGREE or product and "circ" not in run:
        return run[len(run.rstrip()) :]
    return run


def is_asked(head: str, nouns: list[str], known: str) -> bool:
    """Whether words behind a number are what a prompt asks "how many" of, if it does: a noun with its adjectives.

    head  the noun or unit among them that the others belong to: "cups" of "cups of sugar"

    >>> prompt = "17\\nhow many coins are in 5 bags?"
    >>> [is_asked(nouns[-1], nouns, prompt) for nouns in (["coins"], ["red", "coins"], ["bags"])]
    [True, True, False]
    """
    reference, _, prompt = known.partition("\n")
    phrases = [reference, *HOW_MANY.findall(prompt)]
    elsewhere = HOW_MANY_ELSEWHERE.findall(prompt)
    if elsewhere and nouns:  # adjectives may stand behind them
        return any(stands_in(word, phrase) for word in nouns for phrase in [reference, *elsewhere])
    if len(phrases) == 1 or any(word.removesuffix("s") in COUNTS for phrase in phrases[1:] for word in phrase.split()):
        return True  # how many people: students too
    if not nouns:
        return any(unit_of(word) for phrase in phrases for word in phrase.split())
    return any(
        all(stands_in(word, phrase) for word in nouns) or len(phrase.split()) == 1 and stands_in(head, phrase)
        for phrase in phrases
    )


def is_noun(word: str, known: str) -> bool:
    """Whether a word is a noun of the prompt or the reference."""
    if word in NO_NOUN or word in SCALES or len(word) < 3 and word.isascii():
        return False
    return stands_in(word, known)


def names(letter: str, known: str) -> bool:
    """Whether the reference holds the letter by itself. In 20 g it is a unit if no g of the prompt stands alone."""
    reference, _, prompt = known.partition("\n")
    by_itself = rf"(?<![a-z\\]){letter.casefold()}(?![a-z])"
    if prompt and re.fullmatch(rf"[-0-9.,]+ {by_itself}(?:\^[23])?", reference):
        return re.search(rf"(?<![0-9] )(?<!/){by_itself}(?!/)", prompt) is not None
    return re.search(by_itself, reference) is not None
