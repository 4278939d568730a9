"""The course: claims on the project's functions, named wrong answers, and the exercises that are made of both."""
