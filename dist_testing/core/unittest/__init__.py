"""The logic of unittest test classes, as mixins: the same for a class of ours and for one on another base class."""
