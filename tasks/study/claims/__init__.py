"""What a study says: figures of its arms, verdicts, the claims of the article and further ones."""
