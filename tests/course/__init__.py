"""The course: claims on the project's functions, their named wrong answers, and the table of exercises made of them."""
