//! Evaluates arithmetic: `+ - * / %`, parentheses, signs, decimals. Used by `calculate` of the
//! plain JSON-RPC side.

/// How deeply parentheses and signs may nest.
const MAX_DEPTH: usize = 64;
/// How long an expression may be, in bytes.
const MAX_LENGTH: usize = 10_000;

/// Why an expression has no value. Positions count bytes from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArithmeticError {
    #[error("unexpected {found:?} at position {position}")]
    Unexpected { found: char, position: usize },
    #[error("the expression ends too early")]
    EndsEarly,
    #[error("malformed number at position {position}")]
    BadNumber { position: usize },
    #[error("division by zero at position {position}")]
    DivisionByZero { position: usize },
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("the value is out of range")]
    OutOfRange,
}

/// The value of an expression, such as `2 * (3 + 4)`.
pub(super) fn evaluate(expression: &str) -> Result<f64, ArithmeticError> {
    if expression.len() > MAX_LENGTH {
        return Err(ArithmeticError::TooLong);
    }
    let mut reader = Reader { text: expression, at: 0, depth: 0 };
    let value = reader.sum()?;
    match reader.peek() {
        None if value.is_finite() => Ok(value),
        None => Err(ArithmeticError::OutOfRange),
        Some(found) => Err(reader.unexpected(found)),
    }
}

/// Recursive descent, one function for each level of precedence.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    /// The next character that is not a space, without taking it.
    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at = self.text.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn unexpected(&self, found: char) -> ArithmeticError {
        ArithmeticError::Unexpected { found, position: self.at + 1 }
    }

    fn sum(&mut self) -> Result<f64, ArithmeticError> {
        let mut value = self.product()?;
        while let Some(sign @ ('+' | '-')) = self.peek() {
            self.at += 1;
            let right = self.product()?;
            value = if sign == '+' { value + right } else { value - right };
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<f64, ArithmeticError> {
        let mut value = self.signed()?;
        while let Some(sign @ ('*' | '/' | '%')) = self.peek() {
            let position = self.at + 1;
            self.at += 1;
            let right = self.signed()?;
            value = match sign {
                '*' => value * right,
                _ if right == 0.0 => return Err(ArithmeticError::DivisionByZero { position }),
                '/' => value / right,
                _ => value % right,
            };
        }
        Ok(value)
    }

    fn signed(&mut self) -> Result<f64, ArithmeticError> {
        match self.peek() {
            Some('-') => self.nested(|reader| reader.signed().map(|value| -value)),
            Some('+') => self.nested(Self::signed),
            Some('(') => self.nested(Self::closing),
            Some('0'..='9' | '.') => self.number(),
            Some(found) => Err(self.unexpected(found)),
            None => Err(ArithmeticError::EndsEarly),
        }
    }

    /// Takes the character at hand and reads what it opens, one level down.
    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<f64, ArithmeticError>,
    ) -> Result<f64, ArithmeticError> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ArithmeticError::TooDeep);
        }
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn closing(&mut self) -> Result<f64, ArithmeticError> {
        let value = self.sum()?;
        match self.peek() {
            Some(')') => {
                self.at += 1;
                Ok(value)
            }
            Some(found) => Err(self.unexpected(found)),
            None => Err(ArithmeticError::EndsEarly),
        }
    }

    fn number(&mut self) -> Result<f64, ArithmeticError> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let position = self.at + 1;
        self.at += end;
        rest[..end].parse().map_err(|_| ArithmeticError::BadNumber { position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_signs_and_parentheses_are_the_usual_ones() {
        for (text, value) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("10 - 4 - 3", 3.0),
            ("2 * -3", -6.0),
            ("--4", 4.0),
            ("-(2 + 1) % 2", -1.0),
            ("7 / 2", 3.5),
            (".5 + 1.25", 1.75),
            ("  8%5 ", 3.0),
        ] {
            assert_eq!(evaluate(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn a_bad_expression_says_what_and_where() {
        use ArithmeticError::*;
        assert_eq!(evaluate(""), Err(EndsEarly));
        assert_eq!(evaluate("1 +"), Err(EndsEarly));
        assert_eq!(evaluate("(1"), Err(EndsEarly));
        assert_eq!(evaluate("1 / (2 - 2)"), Err(DivisionByZero { position: 3 }));
        assert_eq!(evaluate("5 % 0"), Err(DivisionByZero { position: 3 }));
        assert_eq!(evaluate("1 + x"), Err(Unexpected { found: 'x', position: 5 }));
        assert_eq!(evaluate("1)"), Err(Unexpected { found: ')', position: 2 }));
        assert_eq!(evaluate("1.2.3"), Err(BadNumber { position: 1 }));
        assert_eq!(evaluate("2 × 3"), Err(Unexpected { found: '×', position: 3 }));
    }

    #[test]
    fn depth_length_and_range_are_bounded() {
        let deep = "(".repeat(100_000);
        assert_eq!(evaluate(&deep), Err(ArithmeticError::TooLong));
        assert_eq!(evaluate(&deep[..5000]), Err(ArithmeticError::TooDeep));
        assert_eq!(evaluate(&"-".repeat(65)), Err(ArithmeticError::TooDeep));
        let huge = ["9".repeat(300), "9".repeat(300)].join("*");
        assert_eq!(evaluate(&huge), Err(ArithmeticError::OutOfRange));
        let flat = ["(1)"; 1000].join("+");
        assert_eq!(evaluate(&flat), Ok(1000.0));
    }
}
