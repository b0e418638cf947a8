"""What a page of the register of codes holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """One page: what one sees, what it means, what to do. `symptom` is empty for plain errors."""

    code: str
    title: str
    meaning: str
    action: str
    symptom: str = ""

    def page(self) -> str:
        """The page as plain text."""
        seen = f"What you see: {self.symptom}\n\n" if self.symptom else ""
        return f"{self.code}  {self.title}\n\n{seen}{self.meaning}\n\nWhat to do: {self.action}\n"
